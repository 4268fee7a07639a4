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
        resolution: the reward is rounded to multiples of this. A reward model cannot tell responses that it scores
            nearly alike, but an advantage that is divided by the group's spread makes much of such differences, and
            the policy learns spellings that it happens to like.
    """

    def __init__(self, *, scorer: Scorer, resolution: float = 0.1) -> None:
        if not 0 < resolution <= 1:
            raise ValueError(f"reward preference.resolution: must lie in (0, 1] (got {resolution})")
        self.scorer, self.resolution = scorer, resolution

    def batch(self, pairs: Sequence[tuple[Task, Rollout]]) -> list[float]:
        scores = self.scorer([[*rollout.prompt_tokens, *rollout.tokens] for _, rollout in pairs])
        rewards = [1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, score)))) for score in scores]
        return [round(reward / self.resolution) * self.resolution for reward in rewards]
