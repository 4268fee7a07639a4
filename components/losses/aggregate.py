"""From a per-token loss [N, T] to one number, exactly, however the update was cut into micro-batches.

Every function divides by counts of the *whole* update over all ranks, never by those of the micro-batch, so that the
micro-batches' results (and gradients) simply add up. x is 0 where masked; a rollout without tokens contributes 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """Denominators of one optimiser update.

    Attributes:
        rollouts: rollouts with at least one token in the loss.
        tokens: tokens in the loss.
        max_length: the constant of `constant`: the token limit of a response, or the longest response of the update.
        positive_tokens: tokens of the rollouts that the verifier called correct (positive-sample NLL).
    """

    rollouts: int
    tokens: int
    max_length: int
    positive_tokens: int = 0

    @classmethod
    def of(
        cls, mask: Bool[Tensor, "N T"], *, max_length: int | None = None, positive: Bool[Tensor, " N"] | None = None
    ) -> "GlobalCounts":
        """Counts of one mask; `merge` adds those of other micro-batches and ranks."""
        lengths = mask.bool().sum(-1)
        longest = int(lengths.max()) if lengths.numel() else 0
        return cls(
            rollouts=int((lengths > 0).sum()),
            tokens=int(lengths.sum()),
            max_length=longest if max_length is None else max_length,
            positive_tokens=0 if positive is None else int(lengths[positive.bool()].sum()),
        )

    @classmethod
    def merge(cls, parts: Sequence["GlobalCounts"]) -> "GlobalCounts":
        """Counts of the whole update from those of its parts, for instance ``peers.gather(local)``."""
        return cls(
            rollouts=sum(p.rollouts for p in parts),
            tokens=sum(p.tokens for p in parts),
            max_length=max((p.max_length for p in parts), default=0),
            positive_tokens=sum(p.positive_tokens for p in parts),
        )


def sequence_mean(x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], counts: GlobalCounts) -> Float[Tensor, ""]:
    """1/N Σ_i 1/|o_i| Σ_t x: every rollout weighs the same, so a token of a long one weighs less (arXiv:2402.03300)."""
    lengths = mask.sum(-1).clamp(min=1)
    return (x.sum(-1) / lengths).sum() / max(counts.rollouts, 1)


def token_mean(x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], counts: GlobalCounts) -> Float[Tensor, ""]:
    """Σ_i Σ_t x / Σ_i |o_i|: every token of the update weighs the same (arXiv:2503.14476 §3.3)."""
    return x.sum() / max(counts.tokens, 1)


def constant(
    x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], counts: GlobalCounts, *, length: int | None = None
) -> Float[Tensor, ""]:
    """Σ_i Σ_t x / (N·L): a constant in place of |o_i|, so that length leaves no bias (Dr. GRPO, arXiv:2503.20783 §3.2).

    Args:
        length: L; None takes ``counts.max_length``.
    """
    return x.sum() / max(counts.rollouts * (length or counts.max_length), 1)


def sequence_sum(x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], counts: GlobalCounts) -> Float[Tensor, ""]:
    """1/N Σ_i Σ_t x: the log-probability of a whole response, averaged over rollouts (arXiv:2402.14740)."""
    return x.sum() / max(counts.rollouts, 1)
