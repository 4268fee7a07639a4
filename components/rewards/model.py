"""Reward from a preference model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from components.rewards.parts import final_text, part_of
from components.types import Rollout, Task

Scorer = Callable[[Sequence[Any]], Sequence[float]]


class Preference:
    """σ(s(prompt, response)) in (0, 1), s the scalar of a Bradley–Terry reward model.

    Args:
        scorer: with reads="tokens": token sequences → scalars, `components.models.reward_head.load_scorer`; it must
            share the policy's tokenizer. Otherwise (messages, response text) pairs → scalars,
            `components.models.reward_head.load_text_scorer`, of any tokenizer.
        resolution: the reward is rounded to multiples of this. A reward model cannot tell responses that it scores
            nearly alike, but an advantage that is divided by the group's spread makes much of such differences, and
            the policy learns spellings that it happens to like.
        reads: the policy's own "tokens", the "response" as text, or its final "answer" alone: helpfulness is judged by
            the answer, safety by the whole response (arXiv:2501.12948 §2.3.4). A response that says nothing in the end
            has no answer to be judged and gets 0.

    Raises:
        ValueError: a resolution out of range, or a scorer that was trained on another part of responses.
    """

    def __init__(
        self, *, scorer: Scorer, resolution: float = 0.1, reads: Literal["tokens", "response", "answer"] = "tokens"
    ) -> None:
        if not 0 < resolution <= 1:
            raise ValueError(f"reward preference.resolution: must lie in (0, 1] (got {resolution})")
        trained_on = getattr(scorer, "part", None)
        part = "answer" if reads == "answer" else "response"
        if trained_on is not None and trained_on != part:
            raise ValueError(
                f"reward preference.reads: {reads!r}, but the reward model was trained to judge the "
                f"{trained_on}. Fix: reads={trained_on}, or reward_model.part={part}"
            )
        self.scorer, self.resolution, self.reads = scorer, resolution, reads

    def batch(self, pairs: Sequence[tuple[Task, Rollout]]) -> list[float]:
        if self.reads == "tokens":
            return [self._reward(s) for s in self.scorer([[*r.prompt_tokens, *r.tokens] for _, r in pairs])]
        part = "answer" if self.reads == "answer" else "response"
        judged = [i for i, (_, r) in enumerate(pairs) if part == "response" or final_text(r.response)]
        texts = [(pairs[i][0].messages, part_of(pairs[i][1].response, part)) for i in judged]
        rewards = [0.0] * len(pairs)
        for i, score in zip(judged, self.scorer(texts) if texts else [], strict=True):
            rewards[i] = self._reward(score)
        return rewards

    def _reward(self, score: float) -> float:
        reward = 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, score))))
        return round(reward / self.resolution) * self.resolution
