"""The runs of a sweep as one table: each arm's evaluations, averaged over seeds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.arms_page import write_page
from flows.errors import BadInput, Problem, did_you_mean
from flows.objective import evaluations
from flows.runs import list_runs
from flows.sweep.arms import listed_runs

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Arm:
    """One setting of what was swept, over seeds.

    Attributes:
        label: the swept values, the seed aside.
        seeds: of the runs that have a report.
        runs: how many it has, with those without one.
        values: evaluated stage → estimate {value, low, high, n}: over seeds, or over prompts if there is one seed.
        change: of the last evaluated stage against the one before, paired by seed; None with fewer than two seeds.
    """

    label: str
    seeds: Sequence[int]
    runs: int
    values: Mapping[str, Figures]
    change: Figures | None


def list_sweeps(artifacts: Path) -> list[str]:
    """Ids of all sweeps, the oldest first."""
    return sorted(file.parent.name for file in (artifacts / "sweeps").glob("*/sweep.json"))


def find_sweep(artifacts: Path, name: str) -> str | None:
    """Id of the one sweep that ``name`` is a part of; None if there is none.

    Raises: BadInput if there are several, or runs called so as well.
    """
    sweeps = list_sweeps(artifacts)
    if name in sweeps:
        return name
    matching = [sweep for sweep in sweeps if name in sweep]
    runs = [record["id"] for record in list_runs(artifacts) if name in record["id"]] if matching else []
    if matching and len(matching) + len(runs) > 1:
        what = f"fits {len(matching)} sweeps and {len(runs)} runs"
        raise BadInput(Problem("report", "", what, got=name, fix=did_you_mean(name, [*matching, *runs])))
    return matching[0] if matching else None


def sweep_arms(artifacts: Path, sweep: str, metric: str = "pass@1") -> list[Arm]:
    """The arms of a sweep, best last value first; arms without a finished report last.

    Raises:
        BadInput: no report has that metric.
    """
    arms: dict[str, list[Mapping[str, Any]]] = {}
    for run in listed_runs(artifacts, sweep):
        if not run.again:
            arms.setdefault(run.arm, []).append(run.record)
    known: set[str] = set()
    found = [_arm(label, members, metric, known) for label, members in arms.items()]
    if known and metric not in known:
        raise BadInput(Problem("report", "--metric", "no such metric", got=metric, fix=did_you_mean(metric, known)))
    return sorted(found, key=lambda arm: -_last(arm))


def show_sweep(artifacts: Path, sweep: str, metric: str = "pass@1", against: str = "first") -> bool:
    """Print the tables and write them as ``table.md`` beside the sweep's record; False if no run has a report.

    Tables, page and summary of another metric or against another arm have names of their own: what the sweep ended with
    stays as it is.
    """
    from rich.console import Console

    from flows.sweep.summary import view_name, write_summary
    from flows.sweep.tables import console_tables, markdown_summary

    arms = sweep_arms(artifacts, sweep, metric)
    summary = write_summary(artifacts, sweep, against)
    if not any(arm.seeds for arm in arms) and summary["objective"] is None:
        return False
    file = artifacts / "sweeps" / sweep / view_name("table.md", against=against, metric=metric)
    file.write_text(markdown_table(metric, arms) + markdown_summary(summary), encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    if any(arm.seeds for arm in arms):
        console.print(_console_table(f"sweep {sweep}: {metric}", arms))
    for part in console_tables(summary):
        console.print(part)
    console.print(f"Table: {file}", markup=False, soft_wrap=True)
    if (page := write_page(artifacts, sweep, against)) is not None:
        console.print(f"Page: {page}", markup=False, soft_wrap=True)
    return True


def markdown_table(metric: str, arms: Sequence[Arm]) -> str:
    """The table for a README."""
    head, rows = _cells(arms)
    lines = [[metric, *head[1:]], ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{_CAPTION}\n"


def _console_table(title: str, arms: Sequence[Arm]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    head, rows = _cells(arms)
    for i, column in enumerate(head):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    table.caption, table.caption_justify = _CAPTION, "left"
    return table


_CAPTION = (
    "Means over seeds with 95 % intervals (Student's t over seeds; over prompts where there is one seed); "
    "the change is paired by seed."
)


def _arm(label: str, records: Sequence[Mapping[str, Any]], metric: str, known: set[str]) -> Arm:
    from components.evaluation.intervals import mean_estimate  # numpy

    reports = [(record["seed"], found) for record in records if (found := evaluations(record))]
    for _, stages in reports:
        known |= set().union(*stages.values())
    rows = [(seed, {name: m[metric] for name, m in stages.items() if metric in m}) for seed, stages in reports]
    names = [name for name in (rows[0][1] if rows else {}) if all(name in row for _, row in rows)]
    values = {}
    for name in names:
        estimates = [row[name] for _, row in rows]
        alone = len(estimates) == 1
        values[name] = estimates[0] if alone else _over_seeds(estimates)
    change = None
    if len(names) > 1 and len(rows) > 1:
        change = mean_estimate([row[names[-1]]["value"] - row[names[-2]]["value"] for _, row in rows]).to_json()
    return Arm(label, [seed for seed, _ in rows], len(records), values, change)


def _over_seeds(estimates: Sequence[Figures]) -> Figures:
    """Mean over seeds; the interval of a share ends at 0 and 1, which Student's t does not know."""
    from components.evaluation.intervals import mean_estimate  # numpy

    found = mean_estimate([e["value"] for e in estimates]).to_json()
    if all(e["low"] >= 0 and e["high"] <= 1 for e in estimates):
        found = {**found, "low": max(found["low"], 0.0), "high": min(found["high"], 1.0)}
    return found


def _last(arm: Arm) -> float:
    return list(arm.values.values())[-1]["value"] if arm.values else float("-inf")


def _cells(arms: Sequence[Arm]) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for arm in arms for name in arm.values))
    rows = [
        [
            arm.label,
            str(len(arm.seeds)) if len(arm.seeds) == arm.runs else f"{len(arm.seeds)} of {arm.runs}",
            *(_figure(arm.values.get(name)) for name in names),
            _figure(arm.change, sign="+"),
        ]
        for arm in arms
    ]
    return ["", "seeds", *names, "change"], rows


def _figure(estimate: Figures | None, sign: str = "") -> str:
    if estimate is None:
        return "–"
    value, low, high = (f"{estimate[key]:{sign}.3f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]" if low != high else value  # no spread is no interval of width 0
