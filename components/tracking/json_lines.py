"""A run for programs: ``r1flow run --json`` writes one JSON object a line to standard output, and nothing else.

Every line has ``time`` (seconds since 1970) and ``event``; a stage's own has ``stage``. Fields may be added, those
named here stay:

    run       state (started, done, failed, interrupted); started: run (id), pipeline, seed, directory, stages [names];
              the last one: exit_code, wall_s
    stage     state (running, reused, done, failed, interrupted, skipped), why, wall_s; finished: key, path,
              metrics {name: number}
    progress  done, total, shown {name: number or text}
    metrics   step, values {name: number}
    say       text, level ("info" or "warning")
    finding   step, name, severity (warning, error), text
    gate      mode (warn, stop), passed, text, verdict {decision, against, gains, prices, tests, prompts}
    result    the last line: run (id), state, exit_code, stages {name: {state, wall_s, key, path}}, report (path or
              null), evaluations {stage: {metric: value}}, objective {value, terms, direction, problem}
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from components.tracking.events import Event, numbers, stage_state

_FIELDS = {
    "progress": ("stage", "done", "total", "shown"),
    "metrics": ("stage", "step", "values"),
    "finding": ("stage", "step", "name", "severity", "text"),
    "gate": ("stage", "mode", "passed", "text", "verdict"),
}


class JsonLines:
    """Listener that writes events as lines of JSON; a line is written whole or not at all."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        kind = str(event.get("event"))
        if kind == "run":
            self._write(_run(event))
        elif kind == "stage" and stage_state(event) != "waiting":
            self._write(_stage(event))
        elif kind == "say":
            level = "warning" if event.get("level") == "warning" else "info"
            self._write({"event": kind, "stage": event.get("stage"), "level": level, "text": str(event["text"])})
        elif kind in _FIELDS:
            self._write({"event": kind, **{key: event.get(key) for key in _FIELDS[kind]}})

    def result(self, record: Mapping[str, Any], state: str, exit_code: int) -> None:
        """The last line.

        Args:
            record: the run's record, see `flows.runs`.
        """
        stages = {
            name: {key: stage.get(key) for key in ("state", "wall_s", "key", "path")}
            for name, stage in record["stages"].items()
        }
        report = next(
            (p for s in stages.values() if (p := Path(s["path"] or "/nonexistent") / "report.html").is_file()), None
        )
        summary = report.with_name("summary.json") if report else None
        evaluations = {}
        if summary is not None and summary.is_file():
            for stage in json.loads(summary.read_text(encoding="utf-8"))["stages"]:
                evaluations[stage["name"]] = numbers(stage["metrics"])
        self._write(
            {
                "event": "result",
                "run": record["id"],
                "state": state,
                "exit_code": exit_code,
                "stages": stages,
                "report": str(report) if report else None,
                "evaluations": evaluations,
                "objective": record.get("objective") or {},
            }
        )

    def close(self) -> None:
        """Nothing is held back."""

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps({"time": round(time.time(), 3), **line}, ensure_ascii=False, default=_plain)
        with self._lock:
            file = self._file or sys.stdout
            file.write(text + "\n")
            file.flush()


def _run(event: Event) -> dict[str, Any]:
    if event.get("state") == "started":
        return {
            "event": "run",
            **{k: event.get(k) for k in ("state", "run", "pipeline", "seed", "directory", "stages")},
        }
    return {"event": "run", **{k: event.get(k) for k in ("state", "exit_code", "wall_s")}}


def _stage(event: Event) -> dict[str, Any]:
    line: dict[str, Any] = {"event": "stage", "stage": event["stage"], "state": stage_state(event)}
    line |= {"why": str(event.get("why") or ""), "wall_s": event.get("wall_s")}
    if artifact := event.get("artifact"):
        line |= {"key": artifact["key"], "path": str(artifact["path"]), "metrics": numbers(event.get("metrics") or {})}
    return line


def _plain(value: Any) -> Any:
    """JSON for numbers of numpy and torch, and text for anything else."""
    return value.item() if hasattr(value, "item") else str(value)
