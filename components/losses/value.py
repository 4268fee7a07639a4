"""The critic's side of PPO and VAPO: targets, loss, and how good the values are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from components.losses import supply
from components.losses.advantage import gae
from components.losses.aggregate import GlobalCounts, token_mean
from components.losses.stats import Stats, to_floats
from components.losses.terms import reward_penalty

if TYPE_CHECKING:
    from components.losses.policy import Algorithm


@dataclass(frozen=True, kw_only=True)
class Critic:
    """Settings of the critic.

    Attributes:
        clip: a value may move this far from the one at sampling time before its gradient stops; None for no clip.
        coef: weight of the value loss. The critic has an optimiser of its own, so that under Adam this matters only to
            gradient clipping.
        lam: λ of the value targets (VAPO decouples it from the policy's λ).
        warmup_steps: updates of the critic alone before the policy's first.
    """

    clip: float | None = 0.2
    coef: float = 0.1
    lam: float = 1.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"critic: clip must be positive, or null for none, got {self.clip}")
        if self.coef <= 0:
            raise ValueError(f"critic: coef must be positive, got {self.coef}")
        if not 0 <= self.lam <= 1:
            raise ValueError(f"critic: lam must lie in [0, 1], got {self.lam}")
        if self.warmup_steps < 0:
            raise ValueError(f"critic: warmup_steps must be 0 or more, got {self.warmup_steps}")


def value_targets(
    algorithm: "Algorithm",
    reward: Float[Tensor, " N"],
    valid: Bool[Tensor, " N"],
    *,
    mask: Bool[Tensor, "N T"],
    value: Float[Tensor, "N T"],
    logp: Float[Tensor, "N T"] | None = None,
    ref_logp: Float[Tensor, "N T"] | None = None,
    beta: float | None = None,
) -> Float[Tensor, "N T"]:
    """R_t = Â_t + V_t with Â by `gae` at the critic's λ, 0 where masked.

    γ, the rewards and a KL penalty in them are those of the policy's advantages; arguments as in
    `Algorithm.advantages`.

    Source: decoupled λ, arXiv:2503.01491 §3.2 and arXiv:2504.05118 §4.1.
    """
    if algorithm.critic is None:
        raise ValueError("value_targets: the algorithm has no critic")
    mask, value = mask.bool() & valid.bool()[:, None], value.detach()
    penalty = reward_penalty(algorithm, mask, logp, ref_logp, algorithm.beta(beta))
    gamma = supply.setting(algorithm.advantage, "gamma", 1.0)
    advantage = gae(reward.detach(), valid, mask, value, penalty, gamma=gamma, lam=algorithm.critic.lam)
    return torch.where(mask, advantage + value, 0.0)


def value_loss(
    value: Float[Tensor, "N T"],
    value_old: Float[Tensor, "N T"],
    target: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    counts: GlobalCounts,
    *,
    clip: float | None = 0.2,
) -> Float[Tensor, ""]:
    """Token mean of ½·max((V − R)², (clip(V, V_old ± clip) − R)²).

    Args:
        target: R_t, see `value_targets`.

    Source: arXiv:1707.06347, as in its reference implementation.
    """
    value, value_old, target = (torch.where(mask.bool(), x, 0.0) for x in (value, value_old, target))
    plain, clipped = _squared_errors(value, value_old, target, clip)
    return token_mean(torch.maximum(plain, clipped) / 2, mask, counts)


@torch.no_grad()
def value_stats(
    value: Float[Tensor, "N T"],
    value_old: Float[Tensor, "N T"],
    target: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    *,
    clip: float | None,
) -> Stats:
    """Sums over the tokens of one micro-batch, for `summarise_values`; they add up over micro-batches and ranks."""
    plain, clipped = _squared_errors(value, value_old, target, clip)
    pick = lambda x: torch.where(mask, x.double(), 0.0).sum()  # noqa: E731
    error = target - value_old
    return to_floats(
        {
            "tokens": mask.sum(),
            "loss": pick(torch.maximum(plain, clipped) / 2),
            "clipped": pick(clipped > plain),
            "value": pick(value_old),
            "target": pick(target),
            "target_square": pick(target.double() ** 2),
            "error": pick(error),
            "error_square": pick(error.double() ** 2),
        }
    )


def summarise_values(merged: Mapping[str, float]) -> Stats:
    """Figures for the log from merged `value_stats`.

    ``value_loss``: per token, without its coefficient · ``value_clip_fraction``: tokens that the clip leaves without a
    gradient · ``explained_variance``: 1 − Var(R − V_old)/Var(R) over the update's tokens, 0 where R is constant ·
    ``value_mean``, ``return_mean``: of V_old and R.
    """
    n = max(merged.get("tokens", 0.0), 1.0)
    mean = {name: value / n for name, value in merged.items()}
    if not mean:
        return {}
    spread = mean["target_square"] - mean["target"] ** 2
    unexplained = mean["error_square"] - mean["error"] ** 2
    return {
        "value_loss": mean["loss"],
        "value_clip_fraction": mean["clipped"],
        "explained_variance": 1 - unexplained / spread if spread > 1e-9 else 0.0,
        "value_mean": mean["value"],
        "return_mean": mean["target"],
    }


def _squared_errors(value: Tensor, value_old: Tensor, target: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """((V − R)², the same with V held within ``clip`` of V_old)."""
    plain = (value - target) ** 2
    if clip is None:
        return plain, plain
    return plain, (value_old + (value - value_old).clamp(-clip, clip) - target) ** 2
