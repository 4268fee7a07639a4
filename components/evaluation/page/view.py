"""From sources to the page: figures for the tables, charts, and the HTML around them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from components.evaluation.doctor.finding import Finding
from components.evaluation.page.charts import Series, line_chart
from components.evaluation.page.curves import loss_charts, rl_charts
from components.evaluation.page.lanes import draw
from components.evaluation.page.maps import plane
from components.evaluation.page.notes import LABELS, Note
from components.evaluation.page.sources import Node, Sources

_HERE = Path(__file__).parent
_HEADLINE = ("pass@1", "pass@", "maj@", "format_rate", "language_rate", "length", "unsafe_refused", "benign_answered")
_SAFETY = ("unsafe_refused", "benign_answered", "safety_mean", "over_refusal")


def render(
    sources: Sources,
    stages: Sequence[Mapping[str, Any]],
    notes: Sequence[Note],
    comparisons: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]],
    findings: Sequence[Finding] = (),
    *,
    title: str,
    seed: int,
) -> str:
    """The page. Everything a model or a data set wrote is escaped by the template or set as text by the script."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": _percent, "points": _points, "took": took}
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.j2").render(
        title=title,
        seed=seed,
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=digest,
        stages=stages,
        headline=_columns(stages, _HEADLINE),
        safety=_columns(stages, _SAFETY),
        labels=LABELS,
        tiles=_tiles(stages, sources.nodes),
        notes=notes,
        findings=findings,
        trained=[stage for stage in sources.nodes if stage in sources.steps],
        pipeline=_pipeline(sources.nodes),
        families=_families(stages),
        family_charts=_level_charts(stages, "correct", share=True),
        length_charts=_level_charts(stages, "length", share=False),
        safety_plane=_safety_plane(stages),
        rl=rl_charts(sources),
        losses=loss_charts(sources),
        comparisons=comparisons,
        records=records,
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def took(seconds: float | None) -> str:
    """``12 s``, ``3 min 05 s``, ``2 h 10 min``; a dash where nobody knows."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _columns(stages: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> list[str]:
    """Metrics that some stage has; a name that ends in @ stands for the largest k."""
    names = {name for stage in stages for name in stage["metrics"]}
    columns = []
    for want in wanted:
        if want.endswith("@"):
            several = [n for n in names if n.startswith(want) and n != "pass@1"]
            columns += sorted(several, key=lambda n: int(n.partition("@")[2]))[-1:]
        elif want in names:
            columns.append(want)
    return columns


def _tiles(stages: Sequence[Mapping[str, Any]], nodes: Mapping[str, Node]) -> list[dict[str, Any]]:
    """The few figures at the top: where the last stage arrived, and from where."""
    tiles = []
    if stages:
        last = stages[-1]["metrics"]
        for name, title in (
            ("pass@1", "Reasoning, pass@1"),
            ("unsafe_refused", "Unsafe requests refused"),
            ("benign_answered", "Benign requests answered"),
        ):
            if name in last:
                had = [(s["name"], s["metrics"][name]["value"]) for s in stages if name in s["metrics"]]
                start = next((h for h in had[:-1] if h[1] > 0), had[0])  # a base model without the format scores 0
                tiles.append({"title": title, "estimate": last[name], "from": start if len(had) > 1 else None})
    spent = [node.wall_s for node in nodes.values() if node.wall_s is not None]
    if spent:
        tiles.append(
            {
                "title": "Time in all stages",
                "text": took(sum(spent)),
                "detail": f"{len(spent)} stages",
                "estimate": None,
            }
        )
    return tiles


def _pipeline(nodes: Mapping[str, Node]) -> dict[str, Any]:
    drawn = draw({stage: tuple(node.parents.values()) for stage, node in nodes.items()})
    longest = max((node.wall_s or 0.0 for node in nodes.values()), default=0.0)
    rows = [
        {
            "name": stage,
            "what": nodes[stage].target.rpartition(".")[2].replace("_", " "),
            "wall": took(nodes[stage].wall_s),
            "share": (nodes[stage].wall_s or 0.0) / longest if longest else 0.0,
            "parents": list(nodes[stage].parents.values()),
            "cached": nodes[stage].cached,
            "key": str(nodes[stage].manifest.get("key", ""))[:12],
            "created": nodes[stage].manifest.get("created", ""),
        }
        for stage in drawn.order
    ]
    return {"svg": drawn.svg, "rows": rows}


def _families(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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


def _parts(stages: Sequence[Mapping[str, Any]], table: str, family: str) -> list[dict[str, Any]]:
    """What the table has of the family: name of the part, and its share of right answers after each stage."""
    names = {cell.rpartition("/")[2] for s in stages for cell in s[table] if cell.rpartition("/")[0] == family}
    return [
        {"name": name, "cells": [s[table].get(f"{family}/{name}", {}).get("correct") for s in stages]}
        for name in sorted(names, key=lambda text: (len(text), text))
    ]


def _level_charts(stages: Sequence[Mapping[str, Any]], metric: str, *, share: bool) -> list[Markup]:
    """One chart per family with several levels: the metric over level, a line per stage."""
    charts = []
    for entry in _families(stages):
        if not entry["levels"]:
            continue
        levels = [row["name"] for row in entry["levels"]]
        lines = []
        for i, stage in enumerate(stages):
            found = [(float(lv), stage["by_cell"].get(f"{entry['family']}/{lv}", {}).get(metric)) for lv in levels]
            points = [(x, e) for x, e in found if e is not None]
            lines.append(
                Series(
                    stage["name"],
                    [x for x, _ in points],
                    [e["value"] for _, e in points],
                    [e["low"] for _, e in points],
                    [e["high"] for _, e in points],
                    colour=i % 8,
                )
            )
        charts.append(line_chart(lines, title=entry["family"], share=share, x_label="level"))
    return charts


def _safety_plane(stages: Sequence[Mapping[str, Any]]) -> Markup:
    both = [
        (s["name"], s["metrics"]["benign_answered"]["value"], s["metrics"]["unsafe_refused"]["value"])
        for s in stages
        if "benign_answered" in s["metrics"] and "unsafe_refused" in s["metrics"]
    ]
    return plane(both, title="Both sides of safety", x_label="benign answered", y_label="unsafe refused")
