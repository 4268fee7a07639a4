"""``r1flow deploy``: the pipeline as a Prefect deployment, on a schedule or started from Prefect's pages.

The deployment's flow run is the run: its tasks are the stages, its parameters the overrides. The pipeline works in a
process of its own; cancelling the flow run, or ending this process, stops it at its next step, and the next run goes on
there. Imported with Prefect's settings in the environment (see `flows.prefect_server`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Crashed, Failed

from flows.launch.events import Event
from flows.prefect_flow import mirror, parents_of


@flow(name="r1flow", persist_result=False, validate_parameters=True)  # pyright: ignore[reportCallIssue]
def run_pipeline(overrides: list[str] | None = None, directory: str = ".", config_dir: str | None = None) -> State:
    """Run the pipeline once.

    Args:
        overrides: as on the command line: ["pipeline=smoke", "seed=1"].
        directory: where the command runs; artifacts lie below it.
        config_dir: your own configuration.
    """
    with _started(overrides or [], directory, config_dir) as (process, events, errors):
        first = next((event for event in events if event["event"] == "run"), None)
        state: Any = (
            Crashed(message="it ended before it began") if first is None else mirror(parents_of(first), first, events)
        )
        code = process.wait()
        if code == 2 or first is None:
            errors.seek(0)
            return Failed(message=errors.read().strip()[-2000:] or f"exit code {code}")
        return Cancelled(name="Interrupted", message="it was stopped") if code in (130, 143) else state


@contextlib.contextmanager
def _started(
    overrides: list[str], directory: str, config_dir: str | None
) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[Event], IO[str]]]:
    """The run's process, its events and what it writes to standard error; it stops when this block is left."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "flows.cli", "run", "--leash", "--events-to", str(write)]
    command += ["--config-dir", config_dir] if config_dir else []
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as errors, os.fdopen(read) as lines:
        process = subprocess.Popen(
            [*command, "--", *overrides, "orchestrator=inline"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stderr=errors,
            pass_fds=[write],
            process_group=0,
        )
        os.close(write)
        try:
            yield process, map(json.loads, lines), errors
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def serve(
    name: str, overrides: list[str], config_dir: Path | None, *, cron: str | None = None, every_s: int | None = None
) -> None:
    """Register the deployment and wait for its runs, until interrupted."""
    from prefect.types.entrypoint import EntrypointType

    run_pipeline.serve(  # pyright: ignore[reportAttributeAccessIssue]
        name=name,
        cron=cron,
        interval=every_s,
        parameters={
            "overrides": overrides,
            "directory": str(Path.cwd()),
            "config_dir": None if config_dir is None else str(config_dir.resolve()),
        },
        tags=["r1flow"],
        description="DeepSeek-R1's post-training pipeline; finished stages are reused, interrupted ones go on.",
        pause_on_shutdown=False,
        limit=1,  # runs of one directory would only wait for each other
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
