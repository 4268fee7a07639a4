"""``sweep.html``: the page of a sweep, from its summary and the records of its runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flows.sweep.arms import listed_runs
from flows.sweep.summary import FILE, FIRST, view_name

PAGE = "sweep.html"


def write_page(artifacts: Path, sweep: str, against: str = FIRST) -> Path | None:
    """Write ``sweeps/<id>/sweep.html`` from ``summary.json`` beside it; None if no run of the sweep has a report.

    Args:
        against: as in `write_summary`, which has written the summary that is read.
    """
    home = artifacts / "sweeps" / sweep
    file = home / view_name(FILE, against=against)
    if not file.is_file():
        return None
    summary = json.loads(file.read_text(encoding="utf-8"))
    if not any(arm["seeds"] for arm in summary["arms"]):
        return None
    from components.evaluation.page.sweep_view import render_sweep  # jinja2

    page = home / view_name(PAGE, against=against)
    temporary = page.with_suffix(".tmp")
    temporary.write_text(render_sweep(summary, arm_runs(artifacts, sweep), title=f"Sweep {sweep}", home=home), "utf-8")
    os.replace(temporary, page)
    return page


def arm_runs(artifacts: Path, sweep: str) -> list:
    """Every run of the sweep that is no repetition of another, with its arm, in the order of the sweep."""
    from components.evaluation.page.arm_data import ArmRun

    return [
        ArmRun(run.arm, run.seed, run.state, run.record.get("id", ""), run.record.get("stages", {}))
        for run in listed_runs(artifacts, sweep)
        if not run.again
    ]
