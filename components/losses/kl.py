"""KL to the reference policy: estimators per token, and where the penalty is paid.

d = lp − lp_ref in nats on tokens the current policy sampled, clamped to ±20. E[k1] = E[k3] = KL(π_θ‖π_ref); k2 is
biased, but its gradient is the KL's on-policy (http://joschu.net/blog/kl-approx.html).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import hardtanh

from components.losses.ratio import finite
from components.losses.surrogate import MAX_LOG_RATIO


def k1(logp: Float[Tensor, "N T"], ref_logp: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """d: unbiased, high variance, of either sign."""
    return _difference(logp, ref_logp)


def k2(logp: Float[Tensor, "N T"], ref_logp: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """d²/2."""
    return _difference(logp, ref_logp) ** 2 / 2


def k3(logp: Float[Tensor, "N T"], ref_logp: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """e^{−d} − 1 + d: unbiased and never negative (GRPO, arXiv:2402.03300 eq. 4)."""
    d = _difference(logp, ref_logp)
    return torch.expm1(-d) + d  # expm1: near d = 0, exp(−d) − 1 would cancel to 0


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """β times a KL estimate.

    Attributes:
        estimator: k1, k2 or k3.
        place: "loss" adds β·aggregate(k); "reward" subtracts β·k1 per token before the advantage.
        beta: None takes the stage's.
        corrected: in the loss, weighs the estimate by r = π_θ/π_old, through which the gradient flows too. k3 then has
            the gradient of the reverse KL, off-policy as well (arXiv:2512.02556 eq. 7).
    """

    estimator: Literal["k1", "k2", "k3"] = "k3"
    place: Literal["loss", "reward"] = "loss"
    beta: float | None = None
    corrected: bool = False

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"kl: estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}")
        if self.place not in ("loss", "reward"):
            raise ValueError(f"kl: place must be loss or reward, got {self.place!r}")
        if self.corrected and self.place != "loss":
            raise ValueError("kl: corrected weighs a KL in the loss. Fix: place loss, or corrected false")

    def __call__(self, logp: Float[Tensor, "N T"], ref_logp: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """The estimate per token, without β and not corrected."""
        return ESTIMATORS[self.estimator](logp, ref_logp)


def _difference(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return hardtanh(finite(logp) - finite(ref_logp), -MAX_LOG_RATIO, MAX_LOG_RATIO)
