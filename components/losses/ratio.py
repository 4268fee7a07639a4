"""Log-ratios log π_θ − log π_old in nats: (logp, logp_old, mask) [N, T] → [N, T] per token, [N, 1] per sequence.

Log-probabilities are finite, and 0 where masked (`clean` sees to it).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import threshold

FLOOR = -1e4  # below any log-probability a float32 softmax can give; keeps −inf − (−inf) from being NaN


def token(
    logp: Float[Tensor, "N T"], logp_old: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """d_t = lp_t − lp_old_t (PPO, GRPO)."""
    return logp - logp_old


def sequence(
    logp: Float[Tensor, "N T"], logp_old: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N 1"]:
    """s = mean_t d_t; the gradient flows through the mean (GSPO, arXiv:2507.18071 eq. 7)."""
    return masked_mean(logp - logp_old, mask)


def sequence_token(
    logp: Float[Tensor, "N T"], logp_old: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """sg(s) + lp_t − sg(lp_t): value of `sequence`, gradient of the token (GSPO-token, arXiv:2507.18071 §4.3)."""
    return sequence(logp, logp_old, mask).detach() + (logp - logp.detach())


def sequence_sum(
    logp: Float[Tensor, "N T"], logp_old: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N 1"]:
    """Σ_t d_t, the log-ratio of whole responses (RLOO as published, arXiv:2402.14740)."""
    return (logp - logp_old).sum(-1, keepdim=True)


def finite(logp: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """Log-probabilities with −inf raised to −1e4, in float32 at least. NaN stays NaN: it is a fault, not a value."""
    return threshold(logp.to(torch.promote_types(logp.dtype, torch.float32)), FLOOR, FLOOR)


def clean(logp: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], inside: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """`finite` where the mask is set, 0 elsewhere, whatever stood there; ``inside`` is the mask in floats."""
    if logp.device.type == "cpu" and logp.numel():  # selecting takes five times as long there as a product
        low, high = (bound.item() for bound in logp.detach().aminmax())
        if low >= FLOOR and high < math.inf:
            return logp * inside
    return torch.where(mask, finite(logp), 0.0)


def masked_mean(x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N 1"]:
    """Mean over a rollout's tokens; 0 for a rollout without tokens. ``x`` is 0 where masked."""
    return x.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
