"""Reward from a preference model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from components.types import Rollout, Task

Scorer = Callable[[Sequence[Sequence[int]]], Sequence[float]]


class Preference:
    """σ(s(prompt, response)) in (0, 1), s the scalar of a Bradley–Terry reward model, on the policy's own tokens.

    Args:
        scorer: token sequences → scalars; it must share the policy's tokenizer.
    """

    def __init__(self, *, scorer: Scorer) -> None:
        self.scorer = scorer

    def batch(self, pairs: Sequence[tuple[Task, Rollout]]) -> list[float]:
        scores = self.scorer([[*rollout.prompt_tokens, *rollout.tokens] for _, rollout in pairs])
        return [1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, score)))) for score in scores]
