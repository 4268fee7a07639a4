"""The section on where the lift comes from: bars of its parts, pass@k over k, controls, and what they say in words.

The figures are those of `components.evaluation.attribution`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from components.evaluation.intervals import share_estimate
from components.evaluation.metrics import pass_at_k
from components.evaluation.page.charts import Series, line_chart
from components.evaluation.page.notes import Note, points
from components.evaluation.page.sources import Evaluation, Node
from components.evaluation.summary import is_right

PARTS = {"known": "sharpened", "new": "new ability", "style": "style", "skill": "skill"}


def lift_section(
    attribution: Mapping[str, Any], evaluations: Sequence[Evaluation], nodes: Mapping[str, Node]
) -> dict[str, Any]:
    """What the template needs.

    Returns:
        ``rows``: per stage with something to compare to: stage, parent, ``total``, ``share`` of the whole way (None
        where it has no place on the way or there is none), ``bars`` (two of segments {name, left, width} in percent),
        ``parts`` name → {value, low, high}, ``styles``, ``sharpening``; ``zero`` of the bars in percent; ``parts``,
        the legend; ``curves``, the chart of pass@k; ``controls`` with the time that both sides took.
    """
    rows = [row for stage in attribution["stages"] if (row := _row(stage, attribution["chain"])) is not None]
    zero = _place([bar for row in rows for bar in row["bars"]])
    timed = [
        {
            **entry,
            "wall_s": [nodes[entry[side]].wall_s if entry[side] in nodes else None for side in ("stage", "control")],
        }
        for entry in attribution["controls"]
    ]
    return {"rows": rows, "zero": zero, "parts": PARTS, "curves": pass_chart(evaluations), "controls": timed}


def _row(stage: Mapping[str, Any], chain: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    found: dict[str, Mapping[str, float]] = {}
    if sharpening := stage["sharpening"]:
        found |= {name: _estimate(sharpening[name]) for name in ("known", "new")}
    if style := stage["style"]:
        found |= {name: style[name] for name in ("style", "skill")}
    if not found:
        return None
    bars = [
        [{"name": name, "value": found[name]["value"]} for name in names if name in found]
        for names in (("known", "new"), ("style", "skill"))
    ]
    return {
        "stage": stage["stage"],
        "parent": stage["parent"],
        "total": style["change"] if style else _estimate(stage["sharpening"]["pass@1"]),
        "share": next((entry["share"] for entry in chain if entry["stage"] == stage["stage"]), None),
        "parts": found,
        "bars": [bar for bar in bars if bar],
        "styles": style["styles"] if style else {},
        "sharpening": sharpening,
    }


def _estimate(change: Mapping[str, float]) -> dict[str, float]:
    return {"value": change["effect"], "low": change["low"], "high": change["high"]}


def _place(bars: Sequence[list[dict[str, Any]]]) -> float:
    """Give every segment its left edge and width on a scale common to all bars; the zero's place, in percent."""
    most = max((sum(max(0.0, part["value"]) for part in bar) for bar in bars), default=0.0)
    least = min((sum(min(0.0, part["value"]) for part in bar) for bar in bars), default=0.0)
    span = (most - least) or 1.0
    for bar in bars:
        up = down = 0.0
        for part in bar:
            value = part["value"]
            left = up if value >= 0 else down + value
            up, down = (up + value, down) if value >= 0 else (up, down + value)
            part |= {"left": 100 * (left - least) / span, "width": 100 * abs(value) / span}
    return -100 * least / span


def pass_curve(rows: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """pass@k for k = 1, 2, 4, … and the number of samples that every prompt has: {value, low, high, n} by k."""
    right: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "reasoning" and row.get("sample", 0) >= 0:
            right[row["task_id"]].append(is_right(row))
    samples = min(map(len, right.values()), default=0)
    ks = sorted({*(2**i for i in range(samples.bit_length()) if 2**i <= samples), samples} - {0})
    total = sum(map(len, right.values()))
    return {
        k: share_estimate([pass_at_k(len(found), sum(found), k) for found in right.values()], total).to_json()
        for k in ks
    }


def pass_chart(evaluations: Sequence[Evaluation]) -> Markup:
    """pass@k over k, a line per stage, in doublings of k: lines that meet to the right know the same."""
    lines = []
    for i, evaluation in enumerate(evaluations):
        curve = pass_curve(evaluation.rows)
        if len(curve) > 1:
            low, high = ([e[end] for e in curve.values()] for end in ("low", "high"))
            values = [e["value"] for e in curve.values()]
            lines.append(Series(evaluation.stage, [float(k) for k in curve], values, low, high, colour=i % 8))
    return line_chart(lines, title="pass@k over k", share=True, x_label="k", doubling_x=True)


def lift_notes(attribution: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[Note]:
    """Remarks on what the gains of RL stages are made of, and on models with the same start."""
    better = {stage["name"] for stage in stages if stage["rl"] and _is_better(stage)}
    notes = [_writing(entry) for entry in attribution["stages"] if entry["stage"] in better and entry["style"]]
    return [*notes, *map(_control, attribution["controls"])]


def _is_better(stage: Mapping[str, Any]) -> bool:
    return ((stage["changes"] or {}).get("pass@1") or {}).get("verdict") == "better"


def _writing(entry: Mapping[str, Any]) -> Note:
    found = entry["style"]
    style, skill = found["style"], found["skill"]
    moved, shares = max(
        ((name, row["share"]) for name, row in found["styles"].items()), key=lambda row: abs(row[1][1] - row[1][0])
    )
    text = (
        f"Of {_points(found['change'])} in pass@1, {_points(style)} go with another style (most of all “{moved}”: "
        f"{shares[0]:.0%} → {shares[1]:.0%} of the answers) and {_points(skill)} with more right answers in one style."
    )
    if style["value"] > 2 * abs(skill["value"]):
        return Note("info", f"{entry['stage']} changed the style more than the skill", text)
    if skill["value"] > 2 * abs(style["value"]):
        return Note("good", f"{entry['stage']} gained skill more than style", text)
    return Note("info", f"{entry['stage']} gained by both style and skill", text)


def _control(entry: Mapping[str, Any]) -> Note:
    difference = entry["difference"]
    text = (
        f"{entry['stage']} {points(entry['treatment'])}, {entry['control']} {points(entry['control_change'])}, the "
        f"difference {points(difference)} (p = {difference['p']:.3f})."
    )
    if entry["owned"] is not None:
        own = min(1.0, max(0.0, entry["owned"]))  # a control that fell back explains nothing
        text += f" Of {entry['stage']}'s lift, {entry['control']} does not explain {own:.0%}."
    ahead = entry["stage"] if difference["low"] > 0 else entry["control"] if difference["high"] < 0 else None
    title = f"{ahead} gained more" if ahead else f"{entry['stage']} and {entry['control']} gained alike"
    return Note("info", f"From {entry['start']}, {title}", text)


def _points(estimate: Mapping[str, float]) -> str:
    return f"{100 * estimate['value']:+.1f} [{100 * estimate['low']:+.1f}, {100 * estimate['high']:+.1f}] points"
