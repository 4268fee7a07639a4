"""A run as a Prefect flow with a task per stage: real flow and task runs that follow the driver's events.

Prefect watches, the driver works: no stage waits for the server, and a server that hangs or dies takes nothing along.
Imported by `flows.prefect_recorder` only, once the environment says which server is meant.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, tags, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.urls import url_for

from components.tracking.events import numbers
from flows.launch.events import Emit, Event

_ENDS = {"reused", "done", "failed", "skipped", "interrupted"}
_KILLED = {"state": "killed"}


@task(task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False)  # the store decides what is reused
def stage_task(stage: str, end: Future[Event]) -> State:
    """One stage, from the driver's first word of it to its last; a reused stage shows as Cached."""
    event = end.result()
    artifact = event.get("artifact") or {}
    match event["state"]:
        case "reused":
            return Completed(name="Cached", message=artifact["key"], data=artifact)
        case "done":
            _describe(stage, event)
            return Completed(message=f"built in {event['wall_s']:.1f} s", data=artifact)
        case "failed":
            return Failed(message=event["why"])
        case "killed":
            return Crashed(message="the run was killed")
        case _:
            return Cancelled(name="Interrupted", message=event["why"])


def follow(run: str, driver: int, events: Iterator[Event], tell: Emit) -> None:
    """Record one run, from its first event to its last or to the end of the stream.

    Args:
        run: name of the flow run.
        driver: process number of the driver, by which a later run knows that this one is over.
        tell: gets the address of the flow run.
    """
    first = next((event for event in events if event["event"] == "run"), None)
    if first is None:
        return  # it ended before it began
    parents = {stage["stage"]: set(stage["inputs"].values()) for stage in first["stages"]}

    @flow(  # pyright: ignore[reportCallIssue]
        name="r1flow",
        flow_run_name=run,
        persist_result=False,
        task_runner=ThreadPoolTaskRunner(max_workers=max(1, len(parents))),  # pyright: ignore
    )
    def pipeline() -> State:
        tell({"url": url_for("flow-run", flow_run.id)})
        return _mirror(parents, events)

    host = f"host:{socket.gethostname()}"
    _close_abandoned(host)
    with tags(host, f"pid:{driver}"):
        pipeline(return_state=True)  # pyright: ignore[reportCallIssue]


def _mirror(parents: Mapping[str, set[str]], events: Iterator[Event]) -> State:
    """Start a task when its stage starts and end it when the stage ends; the state of the run."""
    logger = get_run_logger()
    ends: dict[str, Future[Event]] = {}
    tasks: dict[str, Any] = {}
    last: Event = _KILLED
    for event in events:
        stage = event.get("stage") or ""
        if event["event"] == "say":
            logger.info("%s%s", f"{stage}: " if stage else "", event["text"])
        elif event["event"] == "run":
            last = event
        elif event["event"] == "stage":
            if stage not in tasks and event["state"] != "interrupted":
                ends[stage] = Future()
                upstream = [tasks[name] for name in parents[stage] if name in tasks]
                named: Any = stage_task.with_options(name=stage)
                tasks[stage] = named.submit(stage, ends[stage], wait_for=upstream)
            if event["state"] in _ENDS and stage in ends:
                ends[stage].set_result(event)
    for end in ends.values():
        if not end.done():
            end.set_result(_KILLED)
    for each in tasks.values():
        each.wait()
    match last["state"]:
        case "done":
            return Completed(message="every stage has its artifact")
        case "failed":
            return Failed(message="a stage failed")
        case "interrupted":
            return Cancelled(name="Interrupted", message="the same command goes on at the last checkpoints")
        case _:
            return Crashed(message="the run was killed")


def _describe(stage: str, event: Event) -> None:
    """A stage's place and metrics as an artifact in Prefect's pages."""
    rows = "".join(f"| {name} | {value:.4g} |\n" for name, value in numbers(event.get("metrics", {})).items())
    table = f"\n| metric | value |\n|---|---|\n{rows}" if rows else ""
    create_markdown_artifact(
        key=stage.lower().replace("_", "-").replace(".", "-"),
        description=f"Stage {stage}",
        markdown=f"{event['wall_s']:.1f} s, `{event['artifact']['path']}`\n{table}",
    )


def _close_abandoned(host: str) -> None:
    """Runs of this machine whose driver and recorder both ended without a word (power loss) become Crashed."""
    running = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING"]}}, "tags": {"all_": [host]}})
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=running):
            pid = next((tag[4:] for tag in run.tags if tag.startswith("pid:")), None)
            if pid is not None and Path("/proc/self").exists() and not Path(f"/proc/{pid}").exists():
                for task_run in client.read_task_runs(
                    flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
                ):
                    if not (task_run.state and task_run.state.is_final()):
                        client.set_task_run_state(task_run.id, Crashed(message="the run was killed"), force=True)
                client.set_flow_run_state(run.id, Crashed(message="the run was killed"), force=True)
