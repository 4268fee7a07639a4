"""The style of a response: how it is written, told apart from whether it is right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from components.evaluation.metrics import thinking

Row = Mapping[str, Any]
STYLES = ("cut off", "broken format", "mixed language", "uses a tool", "short thought", "usual thought", "long thought")
_IN_LANGUAGE = 0.9  # share of the thinking that has to be in the target language
_SHORT, _LONG = 0.75, 1.33  # of the usual number of words


def styles(*evaluations: Sequence[Row]) -> list[list[str]]:
    """One of `STYLES` for every row of every evaluation: the first that fits.

    A thought is short or long against the median number of words over all the evaluations given, among well-formed
    answers without a tool to prompts of the same family and level: harder prompts need more words, which is no style.
    """
    words: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for row in _all(evaluations):
        if _flaw(row) is None:
            words[row["family"], row["level"]].append(_words(row))
    usual = {cell: median(counts) for cell, counts in words.items()}
    return [
        [_flaw(row) or _length(_words(row), usual[row["family"], row["level"]]) for row in rows] for rows in evaluations
    ]


def _all(evaluations: Iterable[Sequence[Row]]) -> Iterable[Row]:
    return (row for rows in evaluations for row in rows)


def _flaw(row: Row) -> str | None:
    """What sets the response apart before its length does."""
    if row["finish"] == "length":
        return "cut off"
    if float(row.get("format_ok", 1.0)) < 1:
        return "broken format"
    if float(row.get("language", 1.0)) < _IN_LANGUAGE:
        return "mixed language"
    return "uses a tool" if "<tool>" in row["response"] else None


def _words(row: Row) -> int:
    return len(thinking(row["response"]).split())


def _length(words: int, usual: float) -> str:
    if words < _SHORT * usual:
        return "short thought"
    return "long thought" if words > _LONG * usual else "usual thought"
