"""What `attribution.attribute` found, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def attribution_lines(found: Mapping[str, Any]) -> list[str]:
    """A line for each stage (of what kind its lift is), one for the chain and one for each control."""
    stages = [line for entry in found.get("stages", ()) for line in _stage(entry)]
    return [*stages, *_chain(found.get("chain", ())), *(_control(entry) for entry in found.get("controls", ()))]


def _stage(entry: Mapping[str, Any]) -> Iterator[str]:
    sharp, style = entry["sharpening"], entry["style"]
    if not sharp or not style or sharp["new_share"] is None:
        return
    many = "pass@{k}".format(**sharp)
    text = (
        f"{entry['stage']} against {entry['parent']}: pass@1 {points(sharp['pass@1'])}, {many} {points(sharp[many])}; "
        f"{share(sharp['new_share'])} of the lift on prompts not solved in {sharp['tries']} tries before"
    )
    if style["change"]["low"] > 0:
        owned = style["style"]["value"] / style["change"]["value"]
        text += f"; {share(owned)} of it is style ({_biggest_move(style['styles'])}), the rest skill within a style"
    yield text


def _chain(chain: Any) -> Iterator[str]:
    owned = [f"{entry['stage']} {share(entry['share'])}" for entry in chain if entry["share"] is not None]
    if len(owned) > 1:
        total = sum(entry["change"]["effect"] for entry in chain)
        yield f"of the {100 * total:+.1f} points of pass@1 in all: {', '.join(owned)}"


def _control(entry: Mapping[str, Any]) -> str:
    treatment, control, apart = (entry[key] for key in ("treatment", "control_change", "difference"))
    p = "p < 0.001" if apart["p"] < 0.001 else f"p = {apart['p']:.3f}"
    text = (
        f"{entry['stage']} {points(treatment)}, {entry['control']} {points(control)}, both from {entry['start']}: "
        f"{points(apart)} between them ({p})"
    )
    if entry["owned"] is not None:
        # A control that fell back explains nothing: the whole lift is the treatment's own, and no more than that.
        own = min(1.0, max(0.0, entry["owned"]))
        text += f"; {share(own)} of the lift of {entry['stage']} is its own"
    moved = [
        f"{name} {100 * change['effect']:+.1f} points"
        for name, change in (entry.get("metrics") or {}).items()
        if change["verdict"] in ("better", "worse") and name in ("format_rate", "language_rate", "truncated")
    ]
    text += f"; beside it {', '.join(moved)}" if moved else ""
    seconds = entry.get("cpu_s") or {}
    if all(seconds.get(entry[key]) for key in ("stage", "control")):
        text += f"; {seconds[entry['stage']]:.0f} and {seconds[entry['control']]:.0f} CPU seconds"
    return text


def _biggest_move(styles: Mapping[str, Mapping[str, Any]]) -> str:
    name, entry = max(styles.items(), key=lambda item: round(abs(item[1]["share"][1] - item[1]["share"][0]), 9))
    before, after = entry["share"]
    return f"{name} answers {share(before)} → {share(after)}"


def points(change: Mapping[str, float]) -> str:
    return f"{100 * change['effect']:+.1f} [{100 * change['low']:+.1f}, {100 * change['high']:+.1f}]"


def share(value: float) -> str:
    return f"{100 * value:.0f} %"
