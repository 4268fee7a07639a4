"""The section on where the lift comes from: bars of its parts, and what they say in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from components.evaluation.page.notes import Note

PARTS = {"sharpened": "sharpened", "new": "new ability", "lost": "lost", "style": "style", "skill": "skill"}
_BEFORE, _WRITING = ("sharpened", "new", "lost"), ("style", "skill")


def bars(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Two stacked bars for every step, on one scale with a common zero; positions in percent of the width."""
    values = [[step["lift"][name]["value"] for name in _BEFORE] for step in steps]
    values += [[step["style"][name]["value"] for name in _WRITING] for step in steps]
    most = max((sum(v for v in part if v > 0) for part in values), default=0.0)
    least = min((sum(v for v in part if v < 0) for part in values), default=0.0)
    span = (most - least) or 1.0
    return {
        "zero": -100 * least / span,
        "rows": [
            {
                "before": _segments(step["lift"], _BEFORE, least, span),
                "writing": _segments(step["style"], _WRITING, least, span),
            }
            for step in steps
        ],
    }


def _segments(parts: Mapping[str, Any], names: Sequence[str], least: float, span: float) -> list[dict[str, Any]]:
    up = down = 0.0
    found = []
    for name in names:
        value = parts[name]["value"]
        left = up if value >= 0 else down + value
        up, down = (up + value, down) if value >= 0 else (up, down + value)
        found.append({"name": name, "left": 100 * (left - least) / span, "width": 100 * abs(value) / span})
    return found


def lift_notes(found: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[Note]:
    """Remarks on what a gain in accuracy is made of, for the stages whose gain a test supports, and on models with the
    same start that are not compared as neighbours already."""
    better = {
        stage["name"] for stage in stages if ((stage["changes"] or {}).get("pass@1") or {}).get("verdict") == "better"
    }
    notes = [_writing(step) for step in found["steps"] if step["stage"] in better and step["rl"]]
    known = {frozenset((stage["name"], stage["against"])) for stage in stages}
    return [*notes, *(note for group in found["same_start"] for note in _siblings(group, known))]


def _writing(step: Mapping[str, Any]) -> Note:
    style, skill = step["style"]["style"], step["style"]["skill"]
    moved = max(step["style"]["table"], key=lambda row: abs(row["after"] - row["before"]))
    text = (
        f"Of {_points(step['style']['total'])} in pass@1, {_points(style)} go with writing differently "
        f"(most of all “{moved['style']}”: {moved['before']:.0%} → {moved['after']:.0%} of the answers) and "
        f"{_points(skill)} with being right more often in the same style."
    )
    if style["value"] > 2 * abs(skill["value"]):
        return Note("info", f"{step['stage']} changed the style more than the skill", text)
    if skill["value"] > 2 * abs(style["value"]):
        return Note("good", f"{step['stage']} gained skill more than style", text)
    return Note("info", f"{step['stage']} gained by both style and skill", text)


def _siblings(group: Mapping[str, Any], known: Set[frozenset[str]]) -> Iterator[Note]:
    for test in group["tests"]:
        if test["metric"] != "pass@1" or frozenset((test["a"], test["b"])) in known:
            continue
        wide = next((t for t in group["tests"] if (t["a"], t["b"]) == (test["a"], test["b"]) and t is not test), None)
        text = f"{test['b']} against {test['a']}, both trained from {group['start']}: pass@1 {_effect(test)}"
        text += f", {wide['metric']} {_effect(wide)}." if wide else "."
        ahead = {"better": test["b"], "worse": test["a"]}.get(test["verdict"])
        title = f"From {group['start']}, {ahead} gained more" if ahead else f"From {group['start']}, neither gained more"
        yield Note("info", title, text)


def _points(estimate: Mapping[str, float]) -> str:
    return f"{100 * estimate['value']:+.1f} [{100 * estimate['low']:+.1f}, {100 * estimate['high']:+.1f}] points"


def _effect(test: Mapping[str, float]) -> str:
    interval = f"[{100 * test['low']:+.1f}, {100 * test['high']:+.1f}]"
    return f"{100 * test['effect']:+.1f} points {interval} (adjusted p = {test['p_holm']:.3f})"
