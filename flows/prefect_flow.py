"""A run as a Prefect flow with a task run per stage: real flow and task runs that follow the driver's events.

Prefect watches, the driver works: no stage waits for the server, and a server that hangs or dies takes nothing along.
Imported by `flows.prefect_recorder` only, once the environment says which server is meant.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.utilities.urls import url_for

from flows.launch.events import Emit, Event
from flows.prefect_artifacts import describe_run
from flows.prefect_stages import ENDS, KILLED, StageRun, moment, write_log


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

    @flow(name="r1flow", flow_run_name=run, persist_result=False)  # pyright: ignore[reportCallIssue]
    def pipeline() -> State:
        tell({"url": url_for("flow-run", flow_run.id)})
        return mirror(parents, first, events)

    host = f"host:{socket.gethostname()}"
    _close_abandoned(host, records)
    with tags(host, f"pid:{driver}"):
        pipeline(return_state=True)  # pyright: ignore[reportCallIssue]


def parents_of(first: Event) -> dict[str, set[str]]:
    """Stage → stages it takes inputs from, from the event a run begins with."""
    return {stage["stage"]: set(stage["inputs"].values()) for stage in first["stages"]}


def mirror(parents: Mapping[str, set[str]], first: Event, events: Iterable[Event]) -> State:
    """Start a task run when a stage is first heard of and end it when the stage ends; the state of the run.

    The API stamps the states of a flow run itself. So the last one says in words how long the run took from its first
    event on, of which Prefect may have heard late.
    """
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    logger = get_run_logger()
    stages: dict[str, StageRun] = {}
    ended: dict[str, Event] = {}
    last, heard = first, first
    for event in events:
        stage, heard = event.get("stage") or "", event
        if event["event"] == "run":
            last = event
        elif stage not in parents:
            if event["event"] == "say":
                write_log(logger, logging.INFO, event["text"], moment(event))
        elif stage in stages or event.get("state") != "interrupted":
            if stage not in stages:
                upstream = [stages[name] for name in parents[stage] if name in stages]
                stages[stage] = StageRun(stage, context.flow_run, upstream, moment(event))
            stages[stage].hear(event)
            if event["event"] == "stage" and event["state"] in ENDS:
                ended.setdefault(stage, event)
    for each in stages.values():
        if not each.ended:
            each.end({"event": "stage", "state": KILLED, "time": heard.get("time")})
    describe_run(ended)
    took = f"{(moment(last) - moment(first)).total_seconds():.1f} s"
    match last["state"]:
        case "done":
            return Completed(message=f"every stage has its artifact, after {took}")
        case "failed":
            return Failed(message=f"a stage failed, after {took}")
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
