"""A run as a Prefect flow with a task per stage: real flow and task runs that follow the driver's events.

Prefect watches, the driver works: no stage waits for the server, and a server that hangs or dies takes nothing along.
Imported by `flows.prefect_recorder` only, once the environment says which server is meant.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from prefect import flow, get_run_logger, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.urls import url_for

from flows.launch.events import Emit, Event
from flows.prefect_artifacts import Progress, describe_run, describe_stage, one_line

_ENDS = {"reused", "done", "failed", "skipped", "interrupted"}
_KILLED = {"event": "stage", "state": "killed"}


@task(task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False)  # the store decides what is reused
def stage_task(stage: str, events: SimpleQueue[Event]) -> State:
    """One stage, from the driver's first word of it to its last; a reused stage shows as Cached."""
    logger, progress = get_run_logger(), Progress(stage)
    while True:
        event = events.get()
        match event["event"]:
            case "say" | "finding":
                level = (
                    logging.WARNING if event.get("level") == "warning" or event["event"] == "finding" else logging.INFO
                )
                logger.log(level, "%s", event["text"])
            case "progress":
                progress.update(event)
            case "metrics":
                logger.info("step %s: %s", event["step"], one_line(event["values"]))
            case "stage" if event["state"] in ("building", "resumed"):
                logger.info("%s", event.get("why") or event["state"])
            case "stage" if event["state"] in _ENDS or event is _KILLED:
                return _end(stage, event, progress)


def _end(stage: str, event: Event, progress: Progress) -> State:
    artifact = event.get("artifact") or {}
    match event["state"]:
        case "reused":
            return Completed(name="Cached", message=artifact["key"], data=artifact)
        case "done":
            progress.finish()
            describe_stage(stage, event)
            return Completed(message=f"built in {event['wall_s']:.1f} s", data=artifact)
        case "failed":
            return Failed(message=event["why"])
        case "killed":
            return Crashed(message="the run was killed")
        case _:
            return Cancelled(name="Interrupted", message=event["why"])


def follow(run: str, driver: int, events: Iterator[Event], tell: Emit, records: Path) -> None:
    """Record one run, from its first event to its last or to the end of the stream.

    Args:
        run: name of the flow run.
        driver: process number of the driver, by which a later run knows that this one is over.
        tell: gets the address of the flow run.
        records: where runs keep their own records, for those that Prefect missed the end of.
    """
    first = next((event for event in events if event["event"] == "run"), None)
    if first is None:
        return  # it ended before it began
    parents = parents_of(first)

    @flow(  # pyright: ignore[reportCallIssue]
        name="r1flow",
        flow_run_name=run,
        persist_result=False,
        task_runner=ThreadPoolTaskRunner(max_workers=max(1, len(parents))),  # pyright: ignore
    )
    def pipeline() -> State:
        tell({"url": url_for("flow-run", flow_run.id)})
        return mirror(parents, events)

    host = f"host:{socket.gethostname()}"
    _close_abandoned(host, records)
    with tags(host, f"pid:{driver}"):
        pipeline(return_state=True)  # pyright: ignore[reportCallIssue]


def parents_of(first: Event) -> dict[str, set[str]]:
    """Stage → stages it takes inputs from, from the event a run begins with."""
    return {stage["stage"]: set(stage["inputs"].values()) for stage in first["stages"]}


def mirror(parents: Mapping[str, set[str]], events: Iterable[Event]) -> State:
    """Start a task when a stage is first heard of and end it when the stage ends; the state of the run."""
    logger = get_run_logger()
    told: dict[str, SimpleQueue[Event]] = {}
    tasks: dict[str, Any] = {}
    ended: dict[str, Event] = {}
    last: Event = _KILLED
    for event in events:
        stage = event.get("stage") or ""
        if event["event"] == "run":
            last = event
        elif stage not in parents:
            if event["event"] == "say":
                logger.info("%s", event["text"])
        elif stage not in ended:
            if stage not in tasks and event.get("state") != "interrupted":
                told[stage] = SimpleQueue()
                upstream = [tasks[name] for name in parents[stage] if name in tasks]
                named: Any = stage_task.with_options(name=stage)
                tasks[stage] = named.submit(stage, told[stage], wait_for=upstream)
            if stage in told:
                told[stage].put(event)
            if event["event"] == "stage" and event["state"] in _ENDS:
                ended[stage] = event
    for stage in told.keys() - ended.keys():
        told[stage].put(_KILLED)
    for each in tasks.values():
        each.wait()
    describe_run(ended)
    match last["state"]:
        case "done":
            return Completed(message="every stage has its artifact")
        case "failed":
            return Failed(message="a stage failed")
        case "interrupted":
            return Cancelled(name="Interrupted", message="the same command goes on at the last checkpoints")
        case _:
            return Crashed(message="the run was killed")


def _close_abandoned(host: str, records: Path) -> None:
    """End the runs of this machine that nobody records any more, as their records say; without one as Crashed.

    Nobody does if driver and recorder were killed, or if the server was away when the run ended.
    """
    running = {"state": {"type": {"any_": ["RUNNING"]}}, "tags": {"all_": [host]}}
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(running)):
            pid = next((tag[4:] for tag in run.tags if tag.startswith("pid:")), None)
            if pid is None or not Path("/proc/self").exists() or Path(f"/proc/{pid}").exists():
                continue
            record = _record(records / run.name / "run.json")
            of_run = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
            for each in client.read_task_runs(flow_run_filter=of_run):
                if each.state is None or not each.state.is_final():
                    client.set_task_run_state(each.id, _late(record["stages"].get(each.name, {})), force=True)
            client.set_flow_run_state(run.id, _late(record), force=True)


def _record(file: Path) -> dict[str, Any]:
    """The run's own record of how it and its stages ended."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return {"state": str(record["state"]), "stages": dict(record["stages"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"state": "killed", "stages": {}}


def _late(record: Mapping[str, Any]) -> State:
    """The state of a run or a stage whose end Prefect missed."""
    why = record.get("why") or "recorded later, by the next run"
    match record.get("state"):
        case "reused":
            return Completed(name="Cached", message=why)
        case "done":
            return Completed(message=why)
        case "failed":
            return Failed(message=why)
        case "interrupted" | "skipped":
            return Cancelled(name="Interrupted", message=why)
        case _:
            return Crashed(message="the run was killed")
