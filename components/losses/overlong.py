"""What to do with responses near or over the token limit (DAPO, arXiv:2503.14476 §3.4)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


def soft_overlong(length: Shaped[Tensor, " N"], *, max_length: int, buffer: int) -> Float[Tensor, " N"]:
    """Penalty by length: 0 up to max_length − buffer, then falling linearly to −1 at max_length, −1 beyond (eq. 13).

    Raises:
        ValueError: buffer outside [1, max_length].
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(f"soft_overlong: buffer must lie in [1, max_length = {max_length}], got {buffer}")
    return ((max_length - buffer - length.double()) / buffer).clamp(-1.0, 0.0).float()


def drop_truncated(mask: Bool[Tensor, "N T"], truncated: Bool[Tensor, " N"]) -> Bool[Tensor, "N T"]:
    """The mask without truncated rollouts.

    Apply it after the advantages (a truncated rollout counts in its group's statistics) and before the counts (so that
    the denominators shrink).
    """
    return mask.bool() & ~truncated.bool()[:, None]


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """Which of the two rules apply.

    Attributes:
        buffer_share: length of the soft punishment's ramp as a share of the token limit (DAPO: 4,096 of 20,480);
            None for no punishment.
        drop: leave truncated rollouts out of the loss.
    """

    buffer_share: float | None = None
    drop: bool = False

    def __post_init__(self) -> None:
        if self.buffer_share is not None and not 0 < self.buffer_share <= 1:
            raise ValueError(f"overlong: buffer_share must lie in (0, 1] or be null, got {self.buffer_share}")

    def penalty(self, length: Int[Tensor, " N"], max_length: int) -> Float[Tensor, " N"]:
        """What is added to each reward."""
        if self.buffer_share is None:
            return torch.zeros(length.shape, device=length.device)
        return soft_overlong(length, max_length=max_length, buffer=max(1, round(self.buffer_share * max_length)))
