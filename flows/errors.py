"""What a user did wrong, said in one form: ``where key: problem (got …). Fix: …``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flows.redact import redact

SHOWN = 20
_NOTHING: Any = object()
_MORE = re.compile(r"… and (\d+) more\.?")


@dataclass(frozen=True)
class Problem:
    """One thing to put right.

    Attributes:
        where: file, stage or command line the key comes from.
        key: dotted key, empty if the whole of ``where`` is meant.
        got: the offending value as the user wrote it.
        fix: what to do, an imperative sentence without the full stop.
        warning: the run may go on.
    """

    where: str
    key: str
    problem: str
    got: Any = _NOTHING
    fix: str = ""
    warning: bool = False

    def __str__(self) -> str:
        place = " ".join(part for part in (self.where, self.key) if part)
        got = "" if self.got is _NOTHING else f" (got {short(self.got)})"
        fix = f" Fix: {self.fix}." if self.fix else ""
        return f"{place}: {self.problem}{got}.{fix}"


class BadInput(Exception):
    """Nothing was run, because the input can't work. The command line ends with exit code 2 and no traceback."""

    def __init__(self, problems: Iterable[Problem] | Problem, more: int = 0) -> None:
        self.problems: Sequence[Problem] = [problems] if isinstance(problems, Problem) else list(problems)
        self.more = more  # found, and not among ``problems``
        super().__init__("\n".join(map(str, self.problems)))

    def lines(self) -> list[str]:
        """The first `SHOWN` problems, and how many more there are."""
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if (more := max(0, len(self.problems) - SHOWN) + self.more) > 0:
            lines.append(f"… and {more} more.")
        return lines


def data_problems(error: Exception, where: str, key: str = "") -> tuple[list[Problem], int]:
    """What a source says of its data, lines ``FILE:17 answer: what is wrong. Fix: what to do``, and how many more.

    Args:
        where, key: of a line that names no place in the data.
    """
    problems, more = [], 0
    for line in str(error).splitlines():
        if found := _MORE.fullmatch(line):
            more += int(found[1])
            continue
        text, _, fix = line.partition(" Fix: ")
        place, colon, problem = text.partition(": ")
        placed = bool(colon) and " " in place
        told = (problem if placed else text).removesuffix(".")
        problems.append(Problem(place if placed else where, "" if placed else key, told, fix=fix.removesuffix(".")))
    return problems, more


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Those with which nothing can run."""
    return [problem for problem in problems if not problem.warning]


def short(value: Any, limit: int = 80) -> str:
    """``repr`` cut to ``limit`` characters; a component node is shown by its target."""
    if isinstance(value, dict) and "_target_" in value:
        return f"the component {value['_target_']}"
    text = redact(repr(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed spelling that ``word`` most probably stands for, or None if nothing is near."""
    by_folded = {name.lower().replace("-", "_"): name for name in allowed}
    match = difflib.get_close_matches(word.lower().replace("-", "_"), by_folded, n=1, cutoff=0.55)
    return by_folded[match[0]] if match else None


def parted(text: str) -> tuple[str, str]:
    """What an error says, and the remedy that it names after ``Fix:``, each without its full stop."""
    told, _, fix = text.partition(" Fix: ")
    return told.removesuffix("."), fix.removesuffix(".")


def did_you_mean(word: str, allowed: Iterable[str], prefix: str = "") -> str:
    """A remedy: the nearest spelling if there is one, and what is allowed."""
    names = sorted(set(allowed))
    listed = ", ".join(names[:15]) + (", …" if len(names) > 15 else "") or "nothing"
    near = nearest(word, names)
    return f"did you mean {prefix}{near}? Allowed: {listed}" if near else f"use one of: {listed}"
