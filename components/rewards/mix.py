"""The mix: a reward is a weighted sum of named terms; tasks of different kinds may have different mixes."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components.types import Rollout, Score, Task

Pair = tuple[Task, Rollout]
Term = Callable[[Task, Rollout], float]


class Mix:
    """R = Σ_k w_k · term_k over the terms that are active at this point of training.

    A term is a function or object ``(task, rollout) -> float``, or an object with ``batch(pairs) -> list[float]``. A
    term that raises, or returns something that is not a finite number, makes that one score "failed" with the cause;
    it is never trained on as 0.

    Args:
        terms: name → term.
        weights: name → weight; must name the same terms, at least one non-zero.
        active: name → [from, to), share of the steps during which a term counts; always, where not named.
    """

    def __init__(
        self,
        *,
        terms: Mapping[str, Any],
        weights: Mapping[str, float],
        active: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        if set(terms) != set(weights):
            raise ValueError(
                f"reward: terms and weights must have the same names (terms {sorted(terms)}, weights {sorted(weights)})"
            )
        if not any(weights.values()):
            raise ValueError(f"reward.weights: all are 0 (got {dict(weights)}). Fix: give at least one term a weight")
        unknown = set(active or {}) - set(terms)
        if unknown:
            raise ValueError(f"reward.active: no such term {sorted(unknown)}. Fix: one of {sorted(terms)}")
        self.terms, self.weights, self.active = dict(terms), dict(weights), dict(active or {})

    def score(self, pairs: Sequence[Pair], progress: float = 0.0) -> list[Score]:
        """Scores of (task, rollout) pairs; ``progress`` in [0, 1) is the share of the steps already done."""
        names = [name for name in self.terms if self._is_active(name, progress) and self.weights[name]]
        columns = {name: _evaluate(name, self.terms[name], pairs) for name in names}
        return [self._combine({name: columns[name][i] for name in names}) for i in range(len(pairs))]

    def _is_active(self, name: str, progress: float) -> bool:
        start, end = self.active.get(name, (0.0, 1.0))
        return start <= progress < end

    def _combine(self, values: Mapping[str, float | str]) -> Score:
        failures = [f"{name}: {value}" for name, value in values.items() if isinstance(value, str)]
        terms = {name: value for name, value in values.items() if not isinstance(value, str)}
        if failures:
            return Score(0.0, terms, "failed", "; ".join(failures))
        return Score(sum(self.weights[name] * value for name, value in terms.items()), terms)


class ByKind:
    """Routes each task to the mix of its kind (R1's second RL: rules on reasoning, preferences on general data)."""

    def __init__(self, *, kinds: Mapping[str, Any]) -> None:
        self.kinds = dict(kinds)

    def score(self, pairs: Sequence[Pair], progress: float = 0.0) -> list[Score]:
        scores: list[Score | None] = [None] * len(pairs)
        for kind in sorted({task.kind for task, _ in pairs}):
            if kind not in self.kinds:
                raise ValueError(
                    f"reward: no mix for tasks of kind {kind!r}. Fix: add it to reward.kinds ({list(self.kinds)})"
                )
            at = [i for i, (task, _) in enumerate(pairs) if task.kind == kind]
            for i, score in zip(at, self.kinds[kind].score([pairs[i] for i in at], progress), strict=True):
                scores[i] = score
        return [score for score in scores if score is not None]


def _evaluate(name: str, term: Any, pairs: Sequence[Pair]) -> list[float | str]:
    """The term's value for each pair; a string says why there is none."""
    if hasattr(term, "batch"):
        try:
            values = list(term.batch(pairs))
        except Exception:
            return [_cause(name)] * len(pairs)
        if len(values) != len(pairs):
            return [f"returned {len(values)} values for {len(pairs)} rollouts"] * len(pairs)
        return [_checked(value) for value in values]
    return [_evaluate_one(name, term, task, rollout) for task, rollout in pairs]


def _evaluate_one(name: str, term: Term, task: Task, rollout: Rollout) -> float | str:
    try:
        return _checked(term(task, rollout))
    except Exception:
        return f"{_cause(name)} (task {task.id})"


def _checked(value: Any) -> float | str:
    if isinstance(value, Score):
        value = value.total
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return f"returned {value!r}, not a finite number"


def _cause(name: str) -> str:
    return f"term {name} raised\n{traceback.format_exc(limit=4)}"
