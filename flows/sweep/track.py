"""A sweep's summary for the tracker that its runs use: a run of its own above theirs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.build import ALLOWED, build
from flows.sweep.arms import latest_records
from flows.sweep.record import SweepRecord
from flows.sweep.summary import FILE


def track_sweep(
    root: Mapping[str, Any], artifacts: Path, record: SweepRecord, summary: Mapping[str, Any], state: str
) -> None:
    """Hand over how the sweep ended, its tables and its best arm."""
    if (tracker := build(root.get("tracking") or None, allow=(*ALLOWED, *(root.get("allow") or ())))) is None:
        return
    worth = summary["objective"] or {}
    counts = {f"runs_{name}": float(record.count(name)) for name in ("done", "failed")}
    chosen = {"objective": ", ".join(worth["terms"]), "best_arm": worth["best"]} if worth else {}
    files = [str(record.directory / name) for name in (FILE, "table.md", "sweep.json")]
    pipelines = [str(run.get("pipeline")) for run in latest_records(artifacts, record.id).values()]
    tracker(
        {
            "event": "sweep",
            "run": record.id,
            "pipeline": pipelines[0] if pipelines else "run",
            "state": state,
            "sweep_process": record.more.get("process"),
            "files": files,
            "table": [
                {"arm": arm["label"], "metric": name, **estimate, **_tested(arm["against"].get(name))}
                for arm in summary["arms"]
                for name, estimate in arm["metrics"].items()
            ],
            "metrics": {**counts, **({"best_objective": worth["value"]} if worth else {})},
            "params": {"command": " ".join(record.more.get("command", ())), **chosen},
        }
    )


def _tested(test: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"change": test["effect"], "p (Holm)": test["p_holm"]} if test else {"change": None, "p (Holm)": None}
