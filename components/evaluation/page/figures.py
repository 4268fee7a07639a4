"""Figures of the page's tables: the headline, families and levels, both sides of safety, self-correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from components.evaluation.behaviours import CHECK, RECONSIDER, has_marker
from components.evaluation.page.charts import Series, line_chart
from components.evaluation.page.maps import plane
from components.evaluation.page.sources import Evaluation
from components.evaluation.summary import is_right

Stages = Sequence[Mapping[str, Any]]


def columns(stages: Stages, wanted: Sequence[str]) -> list[str]:
    """Metrics that some stage has; a name that ends in @ or ^ stands for the largest k."""
    names = {name for stage in stages for name in stage["metrics"]}
    found = []
    for want in wanted:
        if want[-1] in "@^":
            several = [n for n in names if n.startswith(want) and n != "pass@1"]
            found += sorted(several, key=lambda n: int(n.removeprefix(want)))[-1:]
        elif want in names:
            found.append(want)
    return found


def tested(stages: Stages) -> list[str]:
    """Metrics with a paired test, in the order in which they are shown."""
    return list(dict.fromkeys(name for stage in stages for name in stage["changes"] or {}))


def families(stages: Stages) -> list[dict[str, Any]]:
    """Rows of the family table: a family, then its levels (else its splits, if it has several), one cell per stage."""
    rows = []
    for family in sorted({family for stage in stages for family in stage["by_family"]}):
        levels = _parts(stages, "by_cell", family)
        splits = _parts(stages, "by_split", family)
        rows.append(
            {
                "family": family,
                "cells": [stage["by_family"].get(family, {}).get("correct") for stage in stages],
                "levels": levels if len(levels) > 1 else [],
                "parts": [{"name": f"level {row['name']}", "cells": row["cells"]} for row in levels]
                if len(levels) > 1
                else [{"name": f"held-out {row['name']}", "cells": row["cells"]} for row in splits],
            }
        )
    return rows


def _parts(stages: Stages, table: str, family: str) -> list[dict[str, Any]]:
    """What the table has of the family: name of the part, and its share of right answers after each stage."""
    names = {cell.rpartition("/")[2] for s in stages for cell in s[table] if cell.rpartition("/")[0] == family}
    return [
        {"name": name, "cells": [s[table].get(f"{family}/{name}", {}).get("correct") for s in stages]}
        for name in sorted(names, key=lambda text: (len(text), text))
    ]


def level_charts(stages: Stages, metric: str, *, share: bool) -> list[Markup]:
    """One chart per family with several levels: the metric over level, a line per stage."""
    charts = []
    for entry in families(stages):
        if not entry["levels"]:
            continue
        levels = [row["name"] for row in entry["levels"]]
        lines = []
        for i, stage in enumerate(stages):
            found = [(float(lv), stage["by_cell"].get(f"{entry['family']}/{lv}", {}).get(metric)) for lv in levels]
            lines.append(_over([(x, e) for x, e in found if e is not None], stage["name"], i % 8))
        charts.append(line_chart(lines, title=entry["family"], share=share, x_label="level"))
    return charts


def episodes(stages: Stages) -> list[dict[str, Any]]:
    """Of agents: two tables, by tools offered and by steps needed; a row per stage and figure, one cell per number."""
    tables = []
    for part, title in (("by_tools", "tools offered"), ("by_steps", "steps needed")):
        numbers = sorted({n for stage in stages for n in stage.get(part, {})}, key=int)
        rows = []
        for stage in stages:
            found = [stage.get(part, {}).get(number, {}) for number in numbers]
            names = [n for cell in found for n in cell if n in ("correct", "steps", "invalid_calls") or "pass^" in n]
            for name in dict.fromkeys(names):
                rows.append({"stage": stage["name"], "figure": name, "cells": [cell.get(name) for cell in found]})
        if rows:
            tables.append({"title": title, "numbers": numbers, "rows": rows})
    return tables


def _over(points: Sequence[tuple[float, Mapping[str, float]]], name: str, colour: int) -> Series:
    """A line of estimates with their intervals."""
    found = [e for _, e in points]
    low, high = [e["low"] for e in found], [e["high"] for e in found]
    return Series(name, [x for x, _ in points], [e["value"] for e in found], low, high, colour=colour)


def safety_plane(stages: Stages) -> Markup:
    both = [
        (s["name"], s["metrics"]["benign_answered"]["value"], s["metrics"]["unsafe_refused"]["value"])
        for s in stages
        if "benign_answered" in s["metrics"] and "unsafe_refused" in s["metrics"]
    ]
    return plane(both, title="Both sides of safety", x_label="benign answered", y_label="unsafe refused")


def markers(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Self-correction after each stage: share of reasoning answers that reconsider and that check, and how often
    answers with and without such a marker are right; empty where no answer of any stage has one."""
    rows = []
    for evaluation in evaluations:
        answers = [row for row in evaluation.rows if row["kind"] == "reasoning" and row.get("sample", 0) >= 0]
        if not answers:
            continue
        reconsider = [has_marker(row["response"], RECONSIDER) for row in answers]
        check = [has_marker(row["response"], CHECK) for row in answers]
        either = [a or b for a, b in zip(reconsider, check, strict=True)]
        right: dict[bool, list[bool]] = {True: [], False: []}
        for row, marked in zip(answers, either, strict=True):
            right[marked].append(is_right(row))
        rows.append(
            {
                "stage": evaluation.stage,
                "reconsider": sum(reconsider) / len(answers),
                "check": sum(check) / len(answers),
                "right_with": _mean(right[True]),
                "right_without": _mean(right[False]),
            }
        )
    return rows if any(row["reconsider"] or row["check"] for row in rows) else []


def _mean(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
