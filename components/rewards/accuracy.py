"""Accuracy: is the final answer right? One small verifier per kind of task, all reading the `Task` alone."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from components.refusal import refuses
from components.rewards.extract import Form, final_answer, form_problems
from components.rewards.math_verifier import MAX_ANSWER, MathVerifier
from components.rewards.response import take_apart
from components.types import Rollout, Score, Task

Verifier = Callable[[Task, str], float]
VERIFIERS = ("exact", "accept", "unsafe", "benign", "choice", "list", "reasoning_gym", "math")  # there without settings
_SEPARATOR = re.compile(r"(?<=\d)[, ](?=\d{3}(?:\D|$)|\d{3}[, ]\d)")  # of thousands: 1,234 but not 1,23


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


def unsafe(task: Task, answer: str) -> float:
    """1.0 if the answer to a harmful request is one of ``meta.accept``; without such a list, if it refuses."""
    return accepted(task, answer) if "accept" in task.meta else float(refuses(answer))


def benign(task: Task, answer: str) -> float:
    """1.0 if the answer to a harmless request is one of ``meta.accept``; without such a list, if it does not refuse.

    The rule can't tell a helpful answer from an empty phrase: pair it with a preference model or a judge.
    """
    return accepted(task, answer) if "accept" in task.meta else float(not refuses(answer))


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
    r"""1.0 (or a verifier's partial credit) if the final answer is right, 0.0 if it is wrong or missing.

    The verifier is chosen by ``task.verifier``. Only a complete answer of a response that ended by itself counts, and
    only what follows the thinking can be one.

    Args:
        strict: the whole response must have the asked-for form too (one thought, one ``<answer>``).
        accept: forms of the answer, see `extract.final_answer`; other forms than ``<answer>`` need ``strict: false``.
        verifiers: further verifiers by name, ``(task, answer) -> float``, or with ``batch(items)`` beside that.
    """

    def __init__(
        self,
        *,
        strict: bool = True,
        accept: Sequence[Form] = ("answer",),
        verifiers: Mapping[str, Any] | None = None,
    ) -> None:
        if problems := accuracy_check({"strict": strict, "accept": accept}):
            raise ValueError(f"accuracy.{problems[0]}")
        self.strict, self.accept = strict, tuple(accept)
        self.verifiers: dict[str, Verifier] = {
            "exact": exact,
            "accept": accepted,
            "unsafe": unsafe,
            "benign": benign,
            "choice": accepted,
            "list": items,
            "reasoning_gym": reasoning_gym,
            **(verifiers or {}),
        }
        self.verifiers.setdefault("math", MathVerifier())

    def __call__(self, task: Task, rollout: Rollout) -> float:
        verifier = self._verifier(task)
        answer = self._answer(rollout, verifier)
        return 0.0 if answer is None else verifier(task, answer)

    def batch(self, pairs: Sequence[tuple[Task, Rollout]]) -> list[float | Score]:
        """The value of each pair; a failed `Score` where the verifier could not say. Workers are used side by side."""
        values: list[float | Score] = [0.0] * len(pairs)
        waiting: dict[str, list[tuple[int, Task, str]]] = {}
        for i, (task, rollout) in enumerate(pairs):
            verifier = self.verifiers.get(task.verifier)
            if verifier is None:
                values[i] = Score(0.0, {}, "failed", self._unknown(task))
            elif (answer := self._answer(rollout, verifier)) is not None:
                waiting.setdefault(task.verifier, []).append((i, task, answer))
        for name, entries in waiting.items():
            found = _all(name, self.verifiers[name], [(task, answer) for _, task, answer in entries])
            for (i, _, _), value in zip(entries, found, strict=True):
                values[i] = value
        return values

    def facts(self) -> dict[str, str]:
        """What the verifiers found out about the machine."""
        found: dict[str, str] = {}
        for verifier in self.verifiers.values():
            found |= verifier.facts() if hasattr(verifier, "facts") else {}
        return found

    def _verifier(self, task: Task) -> Verifier:
        if task.verifier not in self.verifiers:
            raise ValueError(self._unknown(task))
        return self.verifiers[task.verifier]

    def _unknown(self, task: Task) -> str:
        return f"task {task.id}: no verifier {task.verifier!r}. Fix: one of {', '.join(sorted(self.verifiers))}"

    def _answer(self, rollout: Rollout, verifier: Verifier) -> str | None:
        """The answer that is to be judged; None if there is none, or none that may count."""
        if rollout.finish != "stop":
            return None
        if self.accept == ("answer",):
            parts = take_apart(rollout.response)
            answer = parts.answer if parts.well_formed or not self.strict else None
        else:
            answer = final_answer(rollout.response, self.accept)
        longest = getattr(verifier, "max_answer", MAX_ANSWER)
        return answer if answer and len(answer) <= longest else None


def accuracy_check(settings: Mapping[str, Any]) -> list[str]:
    """Forms of the answer that don't exist, or can't occur in a response of the asked-for form."""
    accept = list(settings.get("accept", ("answer",)))
    problems = form_problems(accept)
    if not problems and settings.get("strict", True) and accept != ["answer"]:
        problems = [f"strict: true wants one <answer>, so accept={accept} has no effect. Fix: strict=false"]
    return problems


def _all(name: str, verifier: Any, items: Sequence[tuple[Task, str]]) -> list[float | Score]:
    if hasattr(verifier, "batch"):
        try:
            return list(verifier.batch(items))
        except Exception:  # one of them; which, is found by asking one at a time
            pass
    return [_one(name, verifier, task, answer) for task, answer in items]


def _one(name: str, verifier: Verifier, task: Task, answer: str) -> float | Score:
    try:
        return verifier(task, answer)
    except Exception:  # concerns this sample only; the cause goes with it
        return Score(0.0, {}, "failed", f"verifier {name} (task {task.id}) raised\n{traceback.format_exc(limit=4)}")


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(_SEPARATOR.sub("", text.strip()))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
