"""A sweep's summary for the tracker that its runs use: a run of its own above theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.build import ALLOWED, build
from flows.sweep.record import SweepRecord
from flows.sweep.summary import FILE


class SweepTracking:
    """Tells the tracker that a sweep begins and how it ended.

    It begins to connect at once, while the first run works: at the end nothing has to be imported any more.

    Args:
        pipelines: of its runs: each has an experiment of its own, with a run for the sweep.
    """

    def __init__(self, root: Mapping[str, Any], pipelines: Sequence[str], record: SweepRecord) -> None:
        self._record, self._begun = record, False
        self._same: dict[str, Any] = {"event": "sweep", "run": record.id}
        self._same["sweep_process"] = record.more.get("process")
        node, allow = root.get("tracking") or None, (*ALLOWED, *(root.get("allow") or ()))
        self._trackers = {pipeline: build(node, allow=allow) for pipeline in pipelines} if node else {}

    def begin(self) -> None:
        """A run of the sweep starts; told once."""
        if not self._begun:
            self._tell({"state": "running"})
        self._begun = True

    def end(self, summary: Mapping[str, Any], state: str) -> None:
        """Hand over the tables and the best arm, unless no run was started."""
        if not self._trackers or not self._begun:
            return
        record, worth = self._record, summary["objective"] or {}
        counts = {f"runs_{name}": float(record.count(name)) for name in ("done", "failed")}
        chosen = {"objective": ", ".join(worth["terms"]), "best_arm": worth["best"]} if worth else {}
        table = [
            {"arm": arm["label"], "metric": name, **estimate, **_tested(arm["against"].get(name))}
            for arm in summary["arms"]
            for name, estimate in arm["metrics"].items()
        ]
        self._tell(
            {
                "state": state,
                "files": [str(record.directory / name) for name in (FILE, "table.md", "sweep.json")],
                "table": table,
                "metrics": {**counts, **({"best_objective": worth["value"]} if worth else {})},
                "params": {"command": " ".join(record.more.get("command", ())), **chosen},
            }
        )

    def _tell(self, event: Mapping[str, Any]) -> None:
        for pipeline, tracker in self._trackers.items():
            tracker({**self._same, "pipeline": pipeline, **event})


def _tested(test: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"change": test["effect"], "p (Holm)": test["p_holm"]} if test else {"change": None, "p (Holm)": None}
