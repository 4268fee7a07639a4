"""Charts made of an RL stage's rollouts over its steps: what was drawn, how well it went, how it was written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from components.evaluation.behaviours import has_marker
from components.evaluation.page.charts import Series, line_chart
from components.evaluation.page.maps import heat_map
from components.evaluation.page.sources import terms

Row = Mapping[str, Any]
_BINS = 16
_READ_FOR_MARKERS = 4000  # rollouts whose text is searched, evenly over the steps


def drawn_charts(rows: Sequence[Row]) -> list[Markup]:
    """Small charts: pass rate by level, thinking length by level, self-correction, mean level; where they apply."""
    reasoning = [row for row in rows if row.get("kind", "reasoning") == "reasoning"]
    if not reasoning:
        return []
    several_levels = len({row["level"] for row in reasoning}) > 1
    by_level: Callable[[Row], str] = lambda row: f"level {row['level']}"  # noqa: E731
    every = max(1, len(reasoning) // _READ_FOR_MARKERS)
    charts = [
        _binned(reasoning, by_level, _accuracy, "Pass rate by level", share=True) if several_levels else Markup(""),
        _binned(reasoning, by_level, _length, "Length by level (tokens)") if several_levels else Markup(""),
        _binned(reasoning[::every], lambda row: "self-correction", _corrects, "Self-correction markers", share=True),
        _levels(reasoning),
    ]
    return [chart for chart in charts if chart]


def curriculum_map(rows: Sequence[Row]) -> Markup:
    """Pass rate of every cell over the steps; empty where the curriculum drew nothing of it."""
    judged = [(row, right) for row in rows if (right := _accuracy(row)) is not None and _is_reasoning(row)]
    if not judged:
        return Markup("")
    first, size, bins = _bins([row for row, _ in judged])
    found: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(bins)])
    for row, right in judged:
        found[f"{row['family']}/{row['level']}"][(row["step"] - first) // size].append(right)
    cells = {
        name: [(sum(b) / len(b), len(b)) if b else None for b in columns] for name, columns in sorted(found.items())
    }
    last = max(row["step"] for row, _ in judged)
    ends = [(first + i * size, min(last, first + (i + 1) * size - 1)) for i in range(bins)]
    ticks = [f"step {start}" if start == end else f"steps {start}–{end}" for start, end in ends]
    return heat_map(cells, ticks, title="Curriculum: what was drawn, and its pass rate")


def _is_reasoning(row: Row) -> bool:
    return row.get("kind", "reasoning") == "reasoning"


def _accuracy(row: Row) -> float | None:
    return next((value for name, value in terms(row) if name == "accuracy"), None)


def _length(row: Row) -> float:
    return float(row["length"])


def _corrects(row: Row) -> float:
    return float(has_marker(row["response"]))


def _bins(rows: Sequence[Row]) -> tuple[int, int, int]:
    """First step, steps in a bin, number of bins."""
    first, last = min(row["step"] for row in rows), max(row["step"] for row in rows)
    size = max(1, -(-(last - first + 1) // _BINS))
    return first, size, -(-(last - first + 1) // size)


def _binned(
    rows: Sequence[Row],
    line_of: Callable[[Row], str],
    value: Callable[[Row], float | None],
    title: str,
    *,
    share: bool = False,
) -> Markup:
    """Means over stretches of steps, one line per group of rollouts; nothing where all values are zero."""
    first, size, _ = _bins(rows)
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if (v := value(row)) is not None:
            found[line_of(row)][(row["step"] - first) // size].append(v)
    lines = []
    for i, (name, bins) in enumerate(sorted(found.items())):
        at = sorted(bins)
        middle = [first + b * size + (size - 1) / 2 for b in at]
        lines.append(Series(name, middle, [sum(bins[b]) / len(bins[b]) for b in at], colour=i % 8))
    if not any(y for line in lines for y in line.y):
        return Markup("")
    return line_chart(lines, title=title, share=share)


def _levels(rows: Sequence[Row]) -> Markup:
    """Mean level of the prompts drawn, per family; nothing where each family has one level."""
    levels: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        levels[row["family"]].add(row["level"])
    if all(len(found) == 1 for found in levels.values()):
        return Markup("")
    return _binned(rows, lambda row: str(row["family"]), lambda row: float(row["level"]), "Mean level drawn, by family")
