"""The evaluations of a run as one table for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

_COLUMNS = (
    ("pass@1", "pass@1"),
    ("pass@", "pass@{k}"),
    ("format_rate", "format"),
    ("length", "tokens"),
    ("pass^", "pass^{k}"),
    ("steps", "steps"),
    ("invalid_calls", "invalid\ncalls"),
    ("unsafe_refused", "unsafe\nrefused"),
    ("benign_answered", "benign\nanswered"),
)


def console_table(summary: Mapping[str, Any]) -> Table:
    """The evaluations of a run as a table: value, 95 % interval, and what the paired test says of the stage before.

    Args:
        summary: ``summary.json`` of the report stage: ``stages``, each with ``name``, ``metrics`` name → {value, low,
            high, n} and ``changes`` name → {verdict, p_holm, effect} (or None for the first).
    """
    stages: Sequence[Mapping[str, Any]] = summary.get("stages", ())
    present = [(name, title) for key, title in _COLUMNS for name in [_resolve(key, stages)] if name]
    if any(name == "steps" for name, _ in present):  # of agents there is more to say than fits beside these
        several = {name for name, _ in present if name.startswith("pass@") and name != "pass@1"}
        present = [column for column in present if column[0] not in {"format_rate", "length", *several}]
    table = Table(
        title="Evaluation on held-out prompts", title_style="bold", title_justify="left", box=None, padding=(0, 1)
    )
    table.add_column("stage", style="bold", no_wrap=True)
    for name, title in present:
        table.add_column(title.format(k=name[5:]), justify="right", no_wrap=True)
    for stage in stages:
        changes = stage.get("changes") or {}
        table.add_row(str(stage["name"]), *(_cell(stage["metrics"].get(n), changes.get(n), n) for n, _ in present))
    table.caption = (
        "95 % intervals over prompts. ▲▼ against the row above: paired test, * p<.05 ** p<.01 *** p<.001 (Holm)"
    )
    table.caption_justify = "left"
    return table


def _resolve(key: str, stages: Sequence[Mapping[str, Any]]) -> str | None:
    """The metric a column shows: itself, or the largest k of pass@k or pass^k."""
    names = {name for stage in stages for name in stage["metrics"]}
    if key not in ("pass@", "pass^"):
        return key if key in names else None
    several = [name for name in names if name.startswith(key) and name != "pass@1"]
    return max(several, key=lambda name: int(name.removeprefix(key)), default=None)


def _cell(estimate: Mapping[str, float] | None, change: Mapping[str, Any] | None, name: str) -> Text:
    if estimate is None:
        return Text("–", style="dim")
    scale, digits = {"length": (1, 1), "steps": (1, 2), "invalid_calls": (1, 2)}.get(name, (100, 1))
    text = Text(f"{scale * estimate['value']:.{digits}f}")
    verdict = (change or {}).get("verdict", "same")
    if change is not None and verdict != "same":
        stars = "*" * sum(change["p_holm"] < level for level in (0.05, 0.01, 0.001))
        colour = {"better": "green", "worse": "red"}.get(verdict, "yellow")
        text.append(f" {'▲' if change['effect'] > 0 else '▼'}{stars}", style=colour)
    digits = digits if digits > 1 else 0
    text.append(f"\n{scale * estimate['low']:.{digits}f}–{scale * estimate['high']:.{digits}f}", style="dim")
    return text
