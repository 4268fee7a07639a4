"""Reasoning problems with verified answers and worked steps: four families, five levels each.

A prompt is the bare expression: at the size of the embedded model every further word costs accuracy. Steps are written
as a trace writes them; a call of the calculator stands with its result, ``<tool>23*7</tool><result>161</result>``.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

LEVELS = 5
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_GCD_MAX = 32


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its answer and the steps that lead there.

    Attributes:
        steps: in order; the last one shows the answer.
        twins: other wordings of the same question, held out together with it.
    """

    family: str
    level: int
    prompt: str
    answer: str
    steps: tuple[str, ...]
    twins: tuple[str, ...] = ()


def chain(rng: random.Random, level: int) -> Problem:
    """Sum of 2, 3, 4, 6 or 8 one-digit terms, worked from left to right: ``3 + 4 - 2 = ?``."""
    total = rng.randrange(10)
    words, steps = [str(total)], []
    for _ in range((2, 3, 4, 6, 8)[level] - 1):
        sign, term = rng.choice("+-"), rng.randrange(10)
        result = _OPERATORS[sign](total, term)
        words += [sign, str(term)]
        steps.append(f"{total}{sign}{term}={result}")
        total = result
    return Problem("chain", level, " ".join(words) + " = ?", str(total), tuple(steps))


def gcd(rng: random.Random, level: int) -> Problem:
    """Greatest common divisor of two numbers up to 32; the level counts Euclid's divisions: 1, 2, 3, 4, 5 or more."""
    a, b = rng.choice(_pairs_by_divisions()[level])
    steps = tuple(f"{x}%{y}={x % y}" for x, y in _divisions(a, b))
    prompt, swapped = f"gcd of {a} and {b} ?", f"gcd of {b} and {a} ?"
    return Problem("gcd", level, prompt, str(math.gcd(a, b)), steps, (swapped,))


def product(rng: random.Random, level: int) -> Problem:
    """Product of numbers of (1, 1), (1, 2), (2, 2), (2, 3) or (3, 3) digits, one call of the calculator."""
    first, second = ((1, 1), (1, 2), (2, 2), (2, 3), (3, 3))[level]
    a, b = (_number(rng, digits, low=0) for digits in rng.sample((first, second), 2))
    step, result = _call(a, "*", b)
    return Problem("product", level, f"{a} * {b} = ?", str(result), (step,))


def boxes(rng: random.Random, level: int) -> Problem:
    """``4 boxes of 12 pens less 5 pens ?``: a product, then a sum, one call of the calculator each.

    Digits of (boxes, pens per box, loose pens): (1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 3, 3). The answer is
    never below zero.
    """
    digits = ((1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 3, 3))[level]
    while True:
        count, each, loose = (_number(rng, n, low=2) for n in digits)
        word = rng.choice(("and", "less"))
        if word == "and" or loose <= count * each:
            break
    first, in_boxes = _call(count, "*", each)
    second, total = _call(in_boxes, "+" if word == "and" else "-", loose)
    prompt = f"{count} boxes of {each} pens {word} {loose} pens ?"
    return Problem("boxes", level, prompt, str(total), (first, second))


FAMILIES: dict[str, Callable[[random.Random, int], Problem]] = {
    "chain": chain,
    "gcd": gcd,
    "product": product,
    "boxes": boxes,
}


def distinct(rng: random.Random, family: str, level: int, n: int, ban: set[str] | frozenset[str]) -> list[Problem]:
    """Up to ``n`` problems with different prompts, none in ``ban``; fewer where the cell has no more to give."""
    found: dict[str, Problem] = {}
    misses = 0
    while len(found) < n and misses < 1000:
        problem = FAMILIES[family](rng, level)
        if problem.prompt in ban or problem.prompt in found:
            misses += 1
        else:
            found[problem.prompt], misses = problem, 0
    return list(found.values())


def endless(rng: random.Random, family: str, level: int, ban: set[str] | frozenset[str]) -> Iterator[Problem]:
    """Problems without end, repeats allowed, none in ``ban``."""
    while True:
        problem = FAMILIES[family](rng, level)
        if problem.prompt not in ban:
            yield problem


def _number(rng: random.Random, digits: int, *, low: int) -> int:
    return rng.randint(low if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def _call(a: int, sign: str, b: int) -> tuple[str, int]:
    result = _OPERATORS[sign](a, b)
    return f"<tool>{a}{sign}{b}</tool><result>{result}</result>", result


def _divisions(a: int, b: int) -> list[tuple[int, int]]:
    a, b = max(a, b), min(a, b)
    done = [(a, b)]
    while a % b:
        a, b = b, a % b
        done.append((a, b))
    return done


@cache
def _pairs_by_divisions() -> tuple[tuple[tuple[int, int], ...], ...]:
    levels: list[list[tuple[int, int]]] = [[] for _ in range(LEVELS)]
    for a in range(2, _GCD_MAX + 1):
        for b in range(2, _GCD_MAX + 1):
            levels[min(len(_divisions(a, b)), LEVELS) - 1].append((a, b))
    return tuple(map(tuple, levels))
