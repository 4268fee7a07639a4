"""The critic's side of PPO and VAPO."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from components.losses.aggregate import GlobalCounts, token_mean


@dataclass(frozen=True, kw_only=True)
class Critic:
    """Settings of the critic.

    Attributes:
        clip: a value may move this far from the one at sampling time before its gradient stops; None for no clip.
        coef: weight of the value loss.
        lam: λ of the value targets (VAPO decouples it from the policy's λ).
        warmup_steps: updates of the critic alone before the policy's first.
    """

    clip: float | None = 0.2
    coef: float = 0.1
    lam: float = 1.0
    warmup_steps: int = 0


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
        target: R_t = Â_t + V_old_t with Â from `advantage.gae` at the critic's λ.

    Source: arXiv:1707.06347, as in its reference implementation.
    """
    loss = (value - target) ** 2
    if clip is not None:
        near = value_old + (value - value_old).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - target) ** 2)
    return token_mean(loss / 2, mask, counts)
