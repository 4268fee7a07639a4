"""``sweep.html``: the page of a sweep, from its summary and the records of its runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flows.runs import list_runs

SUMMARY, PAGE = "summary.json", "sweep.html"


def write_page(artifacts: Path, sweep: str) -> Path | None:
    """Write ``sweeps/<id>/sweep.html`` from ``summary.json`` beside it; None if no run of the sweep has a report."""
    home = artifacts / "sweeps" / sweep
    file = home / SUMMARY
    if not file.is_file():
        return None
    summary = json.loads(file.read_text(encoding="utf-8"))
    if not any(arm["seeds"] for arm in summary["arms"]):
        return None
    from components.evaluation.page.sweep_view import render_sweep  # jinja2

    page = home / PAGE
    temporary = page.with_suffix(".tmp")
    temporary.write_text(render_sweep(summary, arm_runs(artifacts, sweep), title=f"Sweep {sweep}", home=home), "utf-8")
    os.replace(temporary, page)
    return page


def arm_runs(artifacts: Path, sweep: str) -> list:
    """Every run of the sweep with its arm, in the order of the sweep."""
    from components.evaluation.page.arm_data import ArmRun

    records = {}
    for record in list_runs(artifacts):
        owner, _, number = str(record.get("sweep", "")).rpartition("/")
        if owner == sweep and number.isdigit():
            records[int(number)] = record  # of several the latest
    listed = json.loads((artifacts / "sweeps" / sweep / "sweep.json").read_text(encoding="utf-8"))["runs"]
    found = []
    for number, run in enumerate(listed):
        record = records.get(number, {})
        words = run["overrides"].split(" ")
        arm = " ".join(word for word in words if not _is_seed(word)) or "(no change)"
        seed = " ".join(word.partition("=")[2] for word in words if _is_seed(word)) or str(record.get("seed", 0))
        state = run.get("state") or record.get("state", "waiting")
        found.append(ArmRun(arm, seed, state, record.get("id", ""), record.get("stages", {})))
    return found


def _is_seed(override: str) -> bool:
    key = override.partition("=")[0].lstrip("+")
    return key == "seed" or key.endswith(".seed")
