"""Losses on pairs: the first of each pair is preferred. ``pairs`` is the number of pairs in the whole update."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from components.losses.ratio import finite

Stats = dict[str, float]


def bradley_terry(
    chosen: Float[Tensor, " P"], rejected: Float[Tensor, " P"], *, pairs: int, margin: float = 0.0
) -> tuple[Float[Tensor, ""], Stats]:
    """−Σ log σ(s_chosen − s_rejected − margin)/pairs (arXiv:2203.02155 eq. 1).

    Returns:
        The loss, and sums over pairs: ``pairs``, ``right`` (ties count ½), ``margin`` (s_chosen − s_rejected).
    """
    difference = chosen.float() - rejected.float()
    return -logsigmoid(difference - margin).sum() / max(pairs, 1), _stats(difference)


def dpo(
    chosen: Float[Tensor, " P"],
    rejected: Float[Tensor, " P"],
    ref_chosen: Float[Tensor, " P"],
    ref_rejected: Float[Tensor, " P"],
    *,
    pairs: int,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Stats]:
    """−Σ [(1−ε)·log σ(h) + ε·log σ(−h)]/pairs, h = β·[(lp_c − ref_c) − (lp_r − ref_r)] (arXiv:2305.18290 eq. 7).

    Args:
        chosen, rejected, ref_chosen, ref_rejected: `sequence_logp` under policy and reference.
        label_smoothing: ε, the share of pairs believed to be labelled the wrong way round, in [0, ½).

    Returns:
        The loss, and sums over pairs as in `bradley_terry`, of the implicit rewards h.
    """
    if beta <= 0:
        raise ValueError(f"dpo: beta must be positive, got {beta}")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"dpo: label_smoothing must lie in [0, 0.5), got {label_smoothing}")
    h = beta * ((chosen.float() - ref_chosen.float()) - (rejected.float() - ref_rejected.float()))
    loss = -(1 - label_smoothing) * logsigmoid(h) - label_smoothing * logsigmoid(-h)
    return loss.sum() / max(pairs, 1), _stats(h)


def sequence_logp(
    logp: Float[Tensor, "P T"], mask: Bool[Tensor, "P T"], *, length_normalised: bool = False
) -> Float[Tensor, " P"]:
    """Σ_t lp_t of each response, or its mean per token (length-normalised DPO, arXiv:2411.15124 §5)."""
    total = torch.where(mask.bool(), finite(logp), 0.0).sum(-1)
    return total / mask.sum(-1).clamp(min=1) if length_normalised else total


def _stats(difference: Tensor) -> Stats:
    difference = difference.detach()
    right = (difference > 0).sum() + 0.5 * (difference == 0).sum()
    return {"pairs": float(difference.numel()), "right": float(right), "margin": float(difference.sum())}
