"""Supervised loss."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from components.losses.aggregate import GlobalCounts, token_mean


def nll(logp: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], counts: GlobalCounts) -> Float[Tensor, ""]:
    """Σ −lp / tokens of the whole update: cross-entropy in nats per token, exact under gradient accumulation."""
    return token_mean(torch.where(mask.bool(), -logp, 0.0), mask, counts)
