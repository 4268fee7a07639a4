r"""Equations between numbers in running text: ``3 + 4*2 = 11``, ``<<2*9=18>>``, ``6 \times 7 = 42``. Linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from components.rewards.arithmetic import OPERATORS, is_number, rounds_to, value

_TOKEN = re.compile(
    r"(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<word>\\?[^\W\d]\w*)|(?P<space>[ \t$]+|\\[,$ ])|(?P<mark>.)",
    re.DOTALL,
)
_SIGNS = {"+": "+", "-": "-", "−": "-", "*": "*", "×": "*", "·": "*", "⋅": "*", "/": "/", "÷": "/", "^": "^"}
_SIGNS |= {r"\times": "*", r"\cdot": "*", r"\div": "/", "x": "*", "(": "(", ")": ")", "=": "="}
_MAX_DIGITS = 40  # of a number; a longer one is text


def equations(text: str, *, rounded: bool = True) -> dict[str, bool]:
    """Each distinct equation, and whether it holds.

    An equation has a number on one side and at least one operation on the other; of a chain ``a = b = c`` each pair of
    neighbours counts. One that holds a variable is none: ``x + 3 = 7`` says nothing that can be verified.

    Args:
        rounded: a side that is a decimal also holds if it is the other side rounded to its places.
    """
    found: dict[str, bool] = {}
    for run in _runs(text):
        sides = " ".join(run).split("=")
        for left, right in pairwise(sides):
            pair = left.split(), right.split()
            name = f"{''.join(pair[0])} = {''.join(pair[1])}"
            if name not in found and (verdict := _holds(*pair, rounded)) is not None:
                found[name] = verdict
    return found


def _holds(left: Sequence[str], right: Sequence[str], rounded: bool) -> bool | None:
    if all(len(side) - (side[:1] == ["-"]) == 1 for side in (left, right)):
        return None  # 42 = 42 is no step
    mine, other = value(left), value(right)
    if mine is None or other is None:
        return None
    return mine == other or (rounded and (rounds_to(left, other) or rounds_to(right, mine)))


def _runs(text: str) -> Iterator[list[str]]:
    """Longest stretches of numbers, operators, brackets and equals signs that hold a whole equation."""
    run: list[str] = []
    bound = False  # the run's first side has a part before it: x + …, f(…
    touching = word_before = False
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "space":
            touching = False
            continue
        meaning = _meaning(kind, token, run, touching)
        if meaning is None:
            if "=" in run:
                yield from _whole(run, bound, kind == "word" and touching)
            run, word_before = [], kind == "word" or token in ")]}!%_'"
        else:
            if not run:
                bound = word_before and (touching or meaning in OPERATORS) and meaning != "="
            elif is_number(meaning) and is_number(run[-1]):  # side by side, as in "1. 3+4=7"
                if "=" in run:
                    yield from _whole(run, bound, False)
                run, bound = [], False
            run.append(meaning)
            word_before = False
        touching = True
    if "=" in run:
        yield from _whole(run, bound, False)


def _meaning(kind: str | None, token: str, run: Sequence[str], touching: bool) -> str | None:
    """The token in one spelling; None if it ends a run."""
    if kind == "number":
        return token.replace(",", "") if len(token) <= _MAX_DIGITS else None
    if token == "x" and (touching or not run or not is_number(run[-1])):
        return None  # a variable, unless it stands apart after a number: 3 x 4
    return _SIGNS.get(token)


def _whole(run: list[str], bound_left: bool, bound_right: bool) -> Iterator[list[str]]:
    """The run without a first or last side that goes on outside it, if an equation is left."""
    if bound_left:
        run = run[run.index("=") + 1 :]
    if (bound_right or (run and run[-1] in OPERATORS)) and "=" in run:
        run = run[: len(run) - 1 - run[::-1].index("=")]
    if "=" in run:
        yield run
