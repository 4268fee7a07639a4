"""What Prefect's pages show besides states: progress, metrics, an evaluation's figures, the run at a glance."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    MarkdownArtifact,
    ProgressArtifact,
    TableArtifact,
    create_markdown_artifact,
    update_progress_artifact,
)
from prefect.client.schemas.objects import TaskRun

from components.tracking.events import numbers
from flows.launch.events import Event

_EVERY_S = 5.0  # an update costs the server 30 ms
_SHOWN = 8


class Progress:
    """A stage's progress bar, made when there is something to show and written at most every few seconds."""

    def __init__(self, stage: str, run: TaskRun) -> None:
        self._stage, self._of = stage, ids(run)
        self._id: UUID | None = None
        self._at = float("-inf")

    def update(self, event: Event) -> None:
        """Show ``done`` of ``total``."""
        total, now = float(event.get("total") or 0), time.monotonic()
        if total > 0 and now - self._at >= _EVERY_S:
            self._at = now
            self._write(min(100.0, 100 * float(event.get("done") or 0) / total))

    def finish(self) -> None:
        """Full, if it was begun."""
        if self._id is not None:
            self._write(100.0)

    def _write(self, per_cent: float) -> None:
        if self._id is None:
            key = artifact_key(self._stage, "progress")
            made: Any = ProgressArtifact(key=key, description=self._stage, progress=per_cent, **self._of).create()
            self._id = made.id
        else:
            update_progress_artifact(self._id, progress=per_cent)


def ids(run: TaskRun) -> dict[str, Any]:
    """What says whose an artifact is."""
    return {"task_run_id": run.id, "flow_run_id": run.flow_run_id}


def artifact_key(*parts: str) -> str:
    """Prefect takes lower-case letters, digits and dashes."""
    return "-".join("".join(c if c.isalnum() and c.isascii() else "-" for c in part.lower()) for part in parts)


def one_line(values: Mapping[str, Any]) -> str:
    """The first few figures."""
    return ", ".join(f"{name} {value:.4g}" for name, value in list(numbers(values).items())[:_SHOWN])


def describe_stage(run: TaskRun, event: Event) -> None:
    """A finished stage's place and metrics; of an evaluation the figures with their intervals as a table."""
    stage = run.name
    place = Path(event["artifact"]["path"])
    rows = "".join(f"| {name} | {value:.4g} |\n" for name, value in numbers(event.get("metrics", {})).items())
    table = f"\n| metric | value |\n|---|---:|\n{rows}" if rows else ""
    text = f"{event['wall_s']:.1f} s, `{place}`\n{table}"
    MarkdownArtifact(key=artifact_key(stage), description=f"Stage {stage}", markdown=text, **ids(run)).create()
    if figures := _estimates(place / "summary.json"):
        key, what = artifact_key(stage, "figures"), f"{stage}: 95 % intervals"
        TableArtifact(key=key, description=what, table=figures, **ids(run)).create()


def describe_run(ended: Mapping[str, Event]) -> None:
    """The run at a glance: how each stage ended, how long it took, where its artifact lies."""
    rows = []
    for stage, event in ended.items():
        place = (event.get("artifact") or {}).get("path", "")
        rows.append(f"| {stage} | {event['state']} | {event.get('wall_s') or 0:.1f} | `{place}` |")
    if rows:
        head = "| stage | state | seconds | artifact |\n|---|---|---:|---|\n"
        create_markdown_artifact(key="stages", description="The run's stages", markdown=head + "\n".join(rows))


def _estimates(summary: Path) -> list[dict[str, Any]]:
    """Rows of an evaluation's summary, or of a report's: stage, metric, value, low, high, n."""
    try:
        content = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    stages = content.get("stages") or [{"metrics": content.get("metrics") or {}}]
    rows = []
    for stage in stages:
        for metric, estimate in stage["metrics"].items():
            named = {"stage": stage["name"]} if "name" in stage else {}
            figures = {key: round(float(estimate[key]), 4) for key in ("value", "low", "high", "n") if key in estimate}
            rows.append({**named, "metric": metric, **figures})
    return rows
