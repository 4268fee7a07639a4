"""Accuracy: is the final answer right? One small verifier per kind of task, all reading the `Task` alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from components.rewards.math_worker import MathVerifier
from components.rewards.response import take_apart
from components.types import Rollout, Task

Verifier = Callable[[Task, str], float]
_SEPARATOR = re.compile(r"(?<=\d)[, ](?=\d{3}(?:\D|$)|\d{3}[, ]\d)")  # of thousands: 1,234 but not 1,23
MAX_ANSWER = (
    2_000  # characters; longer answers are wrong, not a load on the verifier (unless its `max_answer` says more)
)


def exact(task: Task, answer: str) -> float:
    """1.0 if the answer is the gold string, white space aside, or the same decimal number (12 and 12.0, not 12x)."""
    gold = (task.answer or "").strip()
    if answer.split() == gold.split():
        return 1.0
    mine, right = _number(answer), _number(gold)
    return float(mine is not None and mine == right)


def accepted(task: Task, answer: str) -> float:
    """1.0 if the answer is one of ``meta.accept``, white space and case aside."""
    return float(_plain(answer) in {_plain(text) for text in task.meta["accept"]})


def items(task: Task, answer: str) -> float:
    """1.0 if the answer is ``meta.prefix`` followed by ``meta.count`` distinct entries of ``meta.allowed``."""
    prefix = task.meta.get("prefix", "")
    if not answer.startswith(prefix):
        return 0.0
    named = [_plain(part) for part in answer[len(prefix) :].split(",")]
    return float(len(named) == task.meta["count"] == len(set(named)) and set(named) <= set(task.meta["allowed"]))


def reasoning_gym(task: Task, answer: str) -> float:
    """The score in [0, 1] that the generator's own scorer gives. Needs the extra ``reasoning-gym``."""
    entry = _with_tuples(task.meta["entry"]) if task.meta["tuples"] else task.meta["entry"]
    scorer = _generator(task.meta["dataset"], json.dumps(task.meta["config"]))
    return float(scorer.score_answer(answer, entry))


@cache
def _generator(name: str, config: str) -> Any:
    from reasoning_gym.factory import create_dataset  # optional package, 2.5 s to import

    return create_dataset(name, seed=0, size=1, **json.loads(config))


def _with_tuples(value: Any) -> Any:
    """JSON has lists where some scorers expect the tuples that they wrote."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


class Accuracy:
    """1.0 (or a verifier's partial credit) if the final answer is right, 0.0 if it is wrong or missing.

    The verifier is chosen by ``task.verifier``. Only a well-terminated answer counts: text after ``</think>`` inside
    the last complete ``<answer>`` pair.

    Args:
        strict: the whole response must have the asked-for form too (one thought, one answer).
        verifiers: further verifiers by name, ``(task, answer) -> float``.
    """

    def __init__(self, *, strict: bool = True, verifiers: Mapping[str, Any] | None = None) -> None:
        self.strict = strict
        self.verifiers: dict[str, Verifier] = {
            "exact": exact,
            "accept": accepted,
            "unsafe": accepted,
            "benign": accepted,
            "choice": accepted,
            "list": items,
            "math": MathVerifier(),
            "reasoning_gym": reasoning_gym,
            **(verifiers or {}),
        }

    def __call__(self, task: Task, rollout: Rollout) -> float:
        if task.verifier not in self.verifiers:
            known = ", ".join(sorted(self.verifiers))
            raise ValueError(f"task {task.id}: no verifier {task.verifier!r}. Fix: one of {known}")
        parts = take_apart(rollout.response)
        usable = rollout.finish == "stop" and parts.answer and (parts.well_formed or not self.strict)
        verifier = self.verifiers[task.verifier]
        if not usable or len(parts.answer or "") > getattr(verifier, "max_answer", MAX_ANSWER):
            return 0.0
        return verifier(task, parts.answer or "")


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(_SEPARATOR.sub("", text.strip()))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
