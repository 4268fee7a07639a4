"""Is a written mathematical answer right? Numbers exactly and here, everything else by math-verify in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from components.rewards.math_pool import MathPool, Reply, shared_pool
from components.rewards.numerals import UNITS, Quantity, Units, exact_value
from components.rewards.sequences import Sequence as Numbers
from components.rewards.sequences import read_sequence
from components.rewards.shape import (
    as_interval,
    base,
    brackets,
    is_worked_out,
    kind_of,
    marks,
    name_of,
    told_apart,
    without_name,
    words,
)
from components.rewards.spelling import Separator, spelled
from components.types import Score, Task

MAX_ANSWER = 2_000  # characters; longer answers are wrong before anything reads them
Percent = Literal["value", "number", "either"]


@dataclass(frozen=True, slots=True)
class _Read:
    """A text as the verifier reads it.

    Attributes:
        value: its number without the per cent sign, if it is one.
        several: its numbers, if it is several.
        name: ``x`` of ``x = 42``.
    """

    text: str
    quantity: Quantity
    value: Fraction | None
    several: Numbers | None
    name: str = ""

    @property
    def is_interval(self) -> bool:
        return bool(brackets(self.text)) and self.text.count(",") == 1


class MathVerifier:
    r"""1.0 if the answer is mathematically equal to ``task.answer``, else 0.0. One answer: no lists, no prose.

    Both are brought to one spelling (`spelling.spelled`). If both are numbers, or several numbers, their exact values
    are compared here. Otherwise they must be of one kind – one value, several, a relation – and math-verify compares
    them in a process with a budget of CPU time. An answer that takes longer, or more than 2,000 characters, is wrong.

    Args:
        tolerance: largest |answer − gold| / |gold| of a right number; 0.0 asks for the exact value, so that 0.333333
            is not 1/3.
        thousands: separators between groups of three digits: "comma" (``1,234``), "space" (``1 234``), "thin"
            (``1\,234``).
        percent: "value": 42% is 0.42; "number": the sign means nothing, 42% is 42; "either": an answer may have the
            sign or not where the gold has none.
        units: name → spellings of the units that an answer may have or lack; where gold and answer both have one it
            must be the same. null: the list in `numerals.UNITS`; {}: none.
        arithmetic: whether ``6 \times 7`` is right for 42. Otherwise a number must be worked out: copying the question
            is no answer.
        variable: whether ``x = 42`` is right for 42.
        workers, cpu_seconds, wall_seconds: see `MathPool`.

    Raises:
        RuntimeError: on a call for one answer: the worker died or stood still twice. A batch has a failed `Score`
            there.
    """

    def __init__(
        self,
        *,
        tolerance: float = 0.0,
        thousands: Sequence[Separator] = ("comma", "thin", "space"),
        percent: Percent = "value",
        units: Mapping[str, Sequence[str]] | None = None,
        arithmetic: bool = False,
        variable: bool = True,
        workers: int = 2,
        cpu_seconds: float = 1.0,
        wall_seconds: float = 60.0,
    ) -> None:
        if not 0 <= tolerance < 1:
            raise ValueError(f"math verifier: tolerance must lie in [0, 1) (got {tolerance}). Fix: 0.0 for exact")
        self.tolerance, self.thousands, self.percent = tolerance, tuple(thousands), percent
        self.arithmetic, self.variable = arithmetic, variable
        self._units = Units(UNITS if units is None else units)
        self._pool_settings = (workers, cpu_seconds, wall_seconds)
        self._read_gold = lru_cache(maxsize=4096)(self._read)  # a group has one gold answer

    def __call__(self, task: Task, answer: str) -> float:
        [value] = self.batch([(task, answer)])
        if isinstance(value, Score):
            raise RuntimeError(value.reason)
        return value

    def batch(self, items: Sequence[tuple[Task, str]]) -> list[float | Score]:
        """The value of each answer; those that need algebra are shared out over the workers."""
        decided = [self._decide(task, answer) for task, answer in items]
        open_questions = list(dict.fromkeys(found for found in decided if isinstance(found, tuple)))
        requests = [{"gold": gold, "answer": mine, "tolerance": self.tolerance} for gold, mine in open_questions]
        replies = dict(zip(open_questions, self.pool.map(requests) if requests else [], strict=True))
        return [
            _value(replies[found], task) if isinstance(found, tuple) else found
            for found, (task, _) in zip(decided, items, strict=True)
        ]

    @property
    def pool(self) -> MathPool:
        return shared_pool(*self._pool_settings)

    def _decide(self, task: Task, answer: str) -> float | tuple[str, str]:
        """The value, or the (gold, answer) that algebra must compare."""
        if not task.answer or len(task.answer) > MAX_ANSWER:
            raise ValueError(
                f"task {task.id}: a gold answer of 1 to {MAX_ANSWER} characters is needed (got {task.answer!r:.80}). "
                "Fix: correct the data"
            )
        if not answer.strip() or len(answer) > MAX_ANSWER:
            return 0.0
        gold, mine = self._read_gold(task.answer), self._read(answer)
        if gold.name and mine.name and gold.name != mine.name:
            return 0.0
        if mine.text == gold.text:
            return 1.0
        if mine.quantity.unit and _unit_words(gold) - _unit_words(mine):  # a unit that no list has: "m/s"
            return 0.0
        if gold.quantity.unit and mine.quantity.unit and gold.quantity.unit != mine.quantity.unit:
            return 0.0
        if gold.value is not None and mine.value is not None:
            return float(self._same_number(gold, mine))
        if gold.several and mine.several and gold.several.brackets == mine.several.brackets:
            return float(gold.several.equals(mine.several, Fraction(str(self.tolerance))))
        if gold.is_interval != mine.is_interval:  # x \le 5 for (-\infty, 5], and the other way round
            gold, mine = (each if each.is_interval else self._read(as_interval(each.text)) for each in (gold, mine))
        return self._algebra(gold, mine)

    def _read(self, text: str) -> _Read:
        text = spelled(text, self.thousands)
        name = name_of(text)
        if self.variable:
            text = spelled(without_name(text), self.thousands)
        quantity = self._units.split(text)
        value = exact_value(quantity.text)
        return _Read(text, quantity, value, read_sequence(text) if value is None else None, name)

    def _same_number(self, gold: _Read, mine: _Read) -> bool:
        assert gold.value is not None and mine.value is not None
        right, given = [(r.value or 0) / (100 if r.quantity.percent else 1) for r in (gold, mine)]
        pairs = [(right, given)]
        if self.percent == "number":
            pairs = [(gold.value, mine.value)]
        elif self.percent == "either" and mine.quantity.percent and not gold.quantity.percent:
            pairs.append((right, mine.value))
        elif self.percent == "either" and gold.quantity.percent and not mine.quantity.percent:
            pairs.append((gold.value, given))
        limit = Fraction(str(self.tolerance))
        return any(abs(b - a) <= limit * abs(a) for a, b in pairs)

    def _algebra(self, gold: _Read, mine: _Read) -> float | tuple[str, str]:
        if "about" in (kinds := (kind_of(gold.quantity.text), kind_of(mine.quantity.text))) or kinds[0] != kinds[1]:
            return 0.0
        if words(mine.quantity.text) - words(gold.quantity.text):
            return 0.0
        for read in (marks, brackets, base):
            if read(mine.quantity.text) != read(gold.quantity.text):
                return 0.0
        if _tail(mine.quantity.text) not in ("", _tail(gold.quantity.text)):
            return 0.0
        if not self.arithmetic and gold.value is not None and not is_worked_out(mine.quantity.text):
            return 0.0
        return told_apart(self._expression(gold), self._expression(mine))

    def _expression(self, read: _Read) -> str:
        text = read.quantity.text
        return rf"\frac{{{text}}}{{100}}" if read.quantity.percent and self.percent != "number" else text


def _tail(text: str) -> str:
    r"""What is written from the first ``\text`` on: a unit that no list has, with its exponent."""
    at = min((i for command in (r"\text", r"\mathrm", r"\mbox") if (i := text.find(command)) >= 0), default=len(text))
    tail = "".join(text[at:].split())
    return (
        tail
        if any(c.isalpha() for c in tail.replace(r"\text", "").replace(r"\mathrm", "").replace(r"\mbox", ""))
        else ""
    )


def _unit_words(read: _Read) -> frozenset[str]:
    """Words beside the number: of a unit that no list has, or of its power (square, cubic)."""
    tail = _tail(read.quantity.text)
    return words(read.quantity.text) | ({tail} if tail else set())


def math_verifier_check(settings: Mapping[str, Any]) -> list[str]:
    """Figures outside their range, before a run."""
    problems = []
    tolerance = settings.get("tolerance", 0.0)
    if isinstance(tolerance, int | float) and not 0 <= tolerance < 1:
        problems.append(f"tolerance: must lie in [0, 1) (got {tolerance}). Fix: 0.0 for exact")
    for name in ("cpu_seconds", "wall_seconds"):
        if isinstance(value := settings.get(name, 1.0), int | float) and value <= 0:
            problems.append(f"{name}: must be positive (got {value}). Fix: write seconds")
    return problems


def _value(reply: Reply, task: Task) -> float | Score:
    if reply.outcome == "failed":
        return Score(0.0, {}, "failed", f"{reply.why} (task {task.id}, gold {task.answer!r:.80})")
    return float(reply.equal)
