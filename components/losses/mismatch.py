"""Corrections for a sampling engine whose log-probabilities differ from the trainer's.

w = exp(lp_old − lp_engine), both of the same weights: lp_old computed by the trainer, lp_engine by the engine that
sampled. The weights multiply the policy loss per token, without gradient.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from components.losses.ratio import finite, masked_mean
from components.losses.surrogate import MAX_LOG_RATIO


def tis(
    logp_old: Float[Tensor, "N T"], logp_engine: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], *, cap: float = 2.0
) -> Float[Tensor, "N T"]:
    """min(w, cap): truncated importance sampling; 1 where masked."""
    if cap < 1:
        raise ValueError(f"mismatch tis: cap must be at least 1, got {cap}")
    return _weight(_log_weight(logp_old, logp_engine, mask)).clamp(max=cap)


def mis(
    logp_old: Float[Tensor, "N T"],
    logp_engine: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    *,
    bound: float = 2.0,
    level: Literal["token", "sequence"] = "token",
) -> Float[Tensor, "N T"]:
    """w inside [1/bound, bound], 0 outside: masked importance sampling. Dropped tokens stay in the denominators.

    Args:
        level: "sequence" drops whole rollouts by their geometric mean of w (a product of w would drop every long one).
    """
    if bound < 1:
        raise ValueError(f"mismatch mis: bound must be at least 1, got {bound}")
    if level not in ("token", "sequence"):
        raise ValueError(f"mismatch mis: level must be token or sequence, got {level!r}")
    log_weight = _log_weight(logp_old, logp_engine, mask)
    judged = _weight(log_weight if level == "token" else masked_mean(log_weight, mask))
    return torch.where((judged >= 1 / bound) & (judged <= bound), _weight(log_weight), 0.0)


def gap(
    logp_old: Float[Tensor, "N T"], logp_engine: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> dict[str, Tensor]:
    """Σ of |log w| and of w − 1 − log w (KL of engine to trainer), the tokens summed over, and the largest |log w|."""
    log_weight = _log_weight(logp_old, logp_engine, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    size = log_weight.abs()
    return {
        "gap_tokens": mask.sum(),
        "gap": size.sum(),
        "gap_kl": (torch.expm1(log_weight) - log_weight).sum(),
        "gap_max": size.max() if size.numel() else size.sum(),
    }


def _log_weight(logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), finite(logp_old.detach()) - finite(logp_engine.detach()), 0.0)


def _weight(log_weight: Tensor) -> Tensor:
    return log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
