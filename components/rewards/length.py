"""Length rewards. Length is the number of tokens the policy wrote: tool results don't count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from components.types import Rollout, Score, Task

Pair = tuple[Task, Rollout]


def soft_overlong(task: Task, rollout: Rollout, *, max_length: int, buffer: int) -> float:
    """0 up to ``max_length − buffer`` tokens, then falling linearly to −1 at ``max_length``, −1 beyond.

    Raises:
        ValueError: buffer outside [1, max_length].

    Source: DAPO, arXiv:2503.14476 eq. 13.
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(f"reward soft_overlong: buffer must lie in [1, max_length = {max_length}] (got {buffer})")
    return min(0.0, max(-1.0, (max_length - buffer - written(rollout)) / buffer))


class Cosine:
    """Short right answers earn more than long ones, short wrong ones less than long ones.

    With t = min(length / max_length, 1), a reward goes from its value at t = 0 to the one at t = 1 along half a cosine:
    r(t) = r₁ + (r₀ − r₁)(1 + cos πt) / 2. A response that was cut off earns ``cut``.

    Args:
        accuracy: term that says whether the answer is right (a value of 1).
        right, wrong: values at length 0 and at ``max_length``.

    Source: arXiv:2502.03373 (figures there: right 2 → 1, wrong −10 → 0, cut −10).
    """

    def __init__(
        self,
        *,
        accuracy: Any,
        max_length: int,
        right: Sequence[float] = (1.0, 0.5),
        wrong: Sequence[float] = (-1.0, -0.5),
        cut: float = -1.0,
    ) -> None:
        if max_length < 1:
            raise ValueError(f"reward cosine: max_length must be at least 1 (got {max_length})")
        self.accuracy, self.max_length, self.cut = accuracy, max_length, cut
        self.right, self.wrong = (right[0], right[1]), (wrong[0], wrong[1])

    def batch(self, pairs: Sequence[Pair]) -> list[float | Score]:
        return [
            value if isinstance(value, Score) else self._value(value >= 1, rollout)
            for value, (_, rollout) in zip(verdicts(self.accuracy, pairs), pairs, strict=True)
        ]

    def _value(self, is_right: bool, rollout: Rollout) -> float:
        if rollout.finish != "stop":
            return self.cut
        start, end = self.right if is_right else self.wrong
        t = min(written(rollout) / self.max_length, 1.0)
        return end + (start - end) * (1 + math.cos(math.pi * t)) / 2


class Concise:
    """Compares lengths within a task's rollouts: λ = 0.5 − (length − shortest) / (longest − shortest).

    A right answer earns λ, a wrong one min(0, λ); all 0 where all are equally long.

    Args:
        accuracy: term that says whether the answer is right (a value of 1).

    Source: Kimi k1.5, arXiv:2501.12599 §2.3.3.
    """

    def __init__(self, *, accuracy: Any) -> None:
        self.accuracy = accuracy

    def batch(self, pairs: Sequence[Pair]) -> list[float | Score]:
        lengths: dict[str, list[int]] = {}
        for task, rollout in pairs:
            lengths.setdefault(task.id, []).append(written(rollout))
        values: list[float | Score] = []
        for value, (task, rollout) in zip(verdicts(self.accuracy, pairs), pairs, strict=True):
            shortest, longest = min(lengths[task.id]), max(lengths[task.id])
            share = (written(rollout) - shortest) / (longest - shortest) if longest > shortest else 0.5
            gain = 0.5 - share
            values.append(value if isinstance(value, Score) else gain if value >= 1 else min(0.0, gain))
        return values


def written(rollout: Rollout) -> int:
    """Tokens that the policy wrote."""
    return sum(rollout.action_mask)


def verdicts(accuracy: Any, pairs: Sequence[Pair]) -> list[float | Score]:
    """The accuracy of each pair; a `Score` where there is none to build on."""
    if hasattr(accuracy, "batch"):
        found = list(accuracy.batch(pairs))
    else:
        found = [accuracy(task, rollout) for task, rollout in pairs]
    return [value.total if isinstance(value, Score) and value.outcome == "scored" else value for value in found]
