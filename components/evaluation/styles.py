"""How a response looks, whatever it says: the strata within which accuracy is compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from components.evaluation.metrics import thinking
from components.evaluation.summary import is_right

STYLES = ("full", "brief", "mixed language", "malformed", "cut off")


def brief_below(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Cell ("family/level") → characters of thinking below which an answer counts as brief.

    Half the median of the right, well-formed answers of all rows given: of every evaluation that is compared, so that
    the mark is the same for all. A cell without a right answer has none.
    """
    lengths: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if is_right(row) and row["format_ok"] >= 1:
            lengths[_cell(row)].append(len(thinking(row["response"])))
    return {cell: median(found) / 2 for cell, found in lengths.items()}


def style_of(row: Mapping[str, Any], short: Mapping[str, float]) -> str:
    """One of `STYLES`, the first that fits from the end: cut off at the limit, malformed, mixed language, brief, full.

    Args:
        short: marks of `brief_below`.
    """
    if row["finish"] == "length":
        return "cut off"
    if row["format_ok"] < 1:
        return "malformed"
    if row.get("language") is not None and row["language"] < 1:
        return "mixed language"
    return "brief" if len(thinking(row["response"])) < short.get(_cell(row), 0.0) else "full"


def _cell(row: Mapping[str, Any]) -> str:
    return f"{row['family']}/{row['level']}"
