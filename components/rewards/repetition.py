"""Repetition penalty."""

from __future__ import annotations

from typing import Literal

from components.rewards.response import take_apart
from components.types import Rollout, Task


def ngram_repetition(
    task: Task, rollout: Rollout, *, n: int = 4, unit: Literal["tokens", "words"] = "tokens", allowed: float = 0.0
) -> float:
    """−(r − allowed) / (1 − allowed), at most 0, with r = 1 − distinct n-grams / all n-grams; in [−1, 0].

    Args:
        n: length of the n-grams.
        unit: "tokens" the policy wrote (any language; tool results left out), or "words" of the thinking.
        allowed: share of repeated n-grams that costs nothing.

    Raises:
        ValueError: n below 1, or allowed outside [0, 1).

    Source: after arXiv:2502.03373, whose penalty falls on each repeated token; this is one figure for the response.
    """
    if n < 1 or not 0 <= allowed < 1:
        raise ValueError(f"reward repetition: n must be at least 1 and allowed in [0, 1) (got {n} and {allowed})")
    items: list[int] | list[str]
    if unit == "tokens":
        items = [token for token, own in zip(rollout.tokens, rollout.action_mask, strict=True) if own]
    else:
        items = take_apart(rollout.response).thinking.split()
    grams = list(zip(*(items[i:] for i in range(n)), strict=False))
    if not grams:
        return 0.0
    repeated = 1 - len(set(grams)) / len(grams)
    return min(0.0, allowed - repeated) / (1 - allowed)
