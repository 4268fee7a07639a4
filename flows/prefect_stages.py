"""A stage as a Prefect task run whose states, start and end have the times at which things happened.

Events may be told long after they happened: the server starts while a run is already at work. Prefect's engine and its
API stamp states when they hear of them, so a task run is kept here and recorded as the engine records it, by events
that carry their own time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from prefect.client.schemas.objects import FlowRun, State, TaskRun, TaskRunResult
from prefect.context import TagsContext
from prefect.logging.loggers import task_run_logger
from prefect.states import Cancelled, Completed, Crashed, Failed, Pending, Running
from prefect.utilities.engine import emit_task_run_state_change_event

from flows.launch.events import Event
from flows.prefect_artifacts import Progress, describe_stage, one_line

ENDS = {"reused", "done", "failed", "skipped", "interrupted"}
KILLED = "killed"
_TICK = timedelta(microseconds=1)  # states of a run are told apart, and ordered, by their time


def moment(event: Event) -> datetime:
    """When it happened."""
    return datetime.fromtimestamp(float(event.get("time") or time.time()), UTC)


def write_log(adapter: Any, level: int, text: str, at: datetime) -> None:
    """A line of a run's log with the time at which it was said."""
    logger = adapter.logger
    if logger.isEnabledFor(level):
        record = logger.makeRecord(logger.name, level, "", 0, text, (), None, extra=dict(adapter.extra))
        record.created = at.timestamp()
        logger.handle(record)


class StageRun:
    """One stage of one run, from the driver's first word of it to its last.

    Args:
        upstream: the stages it takes inputs from, as far as they were heard of.
        at: when it was first heard of.
    """

    def __init__(self, stage: str, flow_run: FlowRun, upstream: Sequence[StageRun], at: datetime) -> None:
        self.ended = False
        self._last: Any = None
        due: Any = at  # Prefect's own type of a moment is a datetime here
        self.run: Any = TaskRun(
            id=uuid4(),
            name=stage,
            flow_run_id=flow_run.id,
            task_key=stage,
            dynamic_key="0",
            tags=sorted(TagsContext.get().current_tags or ()),
            task_inputs={"wait_for": [TaskRunResult(id=each.run.id) for each in upstream]},
            expected_start_time=due,
        )
        self._logger = task_run_logger(self.run, flow_run=flow_run, task_name=stage)
        self._progress = Progress(stage, self.run)
        self._set(Pending(timestamp=at))

    def hear(self, event: Event) -> None:
        """Follow one event of this stage."""
        at = moment(event)
        if self.ended:
            return
        if event["event"] == "stage" and event["state"] in ENDS:
            self.end(event)
            return
        self._begin(at)
        match event["event"]:
            case "say" | "finding":
                warns = event.get("level") == "warning" or event["event"] == "finding"
                write_log(self._logger, logging.WARNING if warns else logging.INFO, event["text"], at)
            case "progress":
                self._progress.update(event)
            case "metrics":
                write_log(self._logger, logging.INFO, f"step {event['step']}: {one_line(event['values'])}", at)
            case "stage" if event["state"] in ("building", "resumed"):
                write_log(self._logger, logging.INFO, event.get("why") or event["state"], at)

    def end(self, event: Event) -> None:
        """The state that it ended in; ``state`` `KILLED` is that of a stage nobody spoke of any more."""
        self.ended, at = True, moment(event)
        artifact, why = event.get("artifact") or {}, event.get("why") or ""
        if event["state"] == "skipped" and self.run.start_time is None:
            self._set(Pending(name="NotReady", message=why, timestamp=at))
            return
        self._begin(at)
        match event["state"]:
            case "reused":
                self._set(Completed(name="Cached", message=artifact["key"], timestamp=at))
            case "done":
                self._progress.finish()
                describe_stage(self.run, event)
                self._set(Completed(message=f"built in {event['wall_s']:.1f} s", timestamp=at))
            case "failed":
                self._set(Failed(message=why, timestamp=at))
            case "killed":
                self._set(Crashed(message="the run was killed", timestamp=at))
            case _:
                self._set(Cancelled(name="Interrupted", message=why, timestamp=at))

    def _begin(self, at: datetime) -> None:
        if self.run.start_time is None:
            self._set(Running(timestamp=at))

    def _set(self, state: State[Any]) -> None:
        run, before = self.run, self.run.state
        if before is not None:
            state.timestamp = max(state.timestamp, before.timestamp + _TICK)
            if before.is_running():
                run.total_run_time += state.timestamp - before.timestamp
        if state.is_running():
            run.start_time, run.run_count = state.timestamp, run.run_count + 1
        if state.is_final():
            run.end_time = state.timestamp
        state.state_details.task_run_id, state.state_details.flow_run_id = run.id, run.flow_run_id
        run.state = state
        self._last = emit_task_run_state_change_event(run, before, state, follows=self._last)
