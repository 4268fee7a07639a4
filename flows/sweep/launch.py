"""Where the runs of a sweep work: the node ``sweep.launcher``.

A launcher has ``submit(function, *arguments)``, which has the function called somewhere that sees the same files, and
returns something with ``done()`` and ``result()``. The function is always `run_arm`; it starts the run as a process,
passes on the request to stop, and returns its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from flows.sweep.requests import requested

PREFIX = "flows.sweep"
_POLL_S = 0.05


class Job(Protocol):
    def done(self) -> bool: ...
    def result(self) -> int: ...


class SweepLauncher(Protocol):
    """Calls functions somewhere.

    Attributes:
        jobs: runs at a time; no more are submitted.
        to_files: their output can't reach this terminal.
    """

    jobs: int
    to_files: bool

    def submit(self, function: Callable[..., int], *arguments: Any) -> Job: ...

    def close(self) -> None: ...


class Local:
    """Processes of this machine; where that is possible they are forked (see `flows.sweep.forked`)."""

    to_files = False

    def __init__(self, *, jobs: int = 1) -> None:
        self.jobs = jobs
        self._pool = ThreadPoolExecutor(jobs)

    def submit(self, function: Callable[..., int], *arguments: Any) -> Future[int]:
        return self._pool.submit(function, *arguments)

    def close(self) -> None:
        self._pool.shutdown()


def run_arm(
    command: Sequence[str], directory: str, environment: Mapping[str, str], log: str | None, requests: str
) -> int:
    """Run one arm to its end; its exit code, 128 + signal if it was killed.

    The process stops by itself, at its next step, when whoever called this is gone: its input ends then.

    Args:
        log: file of its output; None for the terminal.
        requests: file that holds a signal's number per request to stop.
    """
    with contextlib.ExitStack() as files:
        output = files.enter_context(open(log, "ab")) if log else None
        process = subprocess.Popen(
            [*command],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            process_group=0,  # a Ctrl-C at the terminal reaches it once, through the sweep
        )
        passed_on = 0
        while (code := process.poll()) is None:
            for signum in requested(requests)[passed_on:]:
                passed_on += 1
                process.send_signal(signum)
            time.sleep(_POLL_S)
        assert process.stdin is not None
        process.stdin.close()
        return code if code >= 0 else 128 - code


def is_local(node: Mapping[str, Any]) -> bool:
    """Whether runs are started by this process itself."""
    return node.get("_target_") == f"{PREFIX}.launch.Local"


def check_launcher(node: Mapping[str, Any] | None, allow: Sequence[str]) -> dict[str, Any]:
    """The node, `Local` if the configuration names none. Raises: BadInput if it doesn't fit its component."""
    from flows.errors import BadInput, errors
    from flows.preflight import check_node

    node = dict(node or {"_target_": f"{PREFIX}.launch.Local"})
    if problems := errors(check_node("configuration", "sweep.launcher", node, (PREFIX, *allow))[0]):
        raise BadInput(problems)
    return node


def make_launcher(node: Mapping[str, Any], jobs: int | None, directory: Path) -> SweepLauncher:
    """The launcher of a sweep.

    Args:
        jobs: runs at a time; None leaves it to the node.
        directory: of the sweep, for a launcher that keeps files (it has a parameter ``folder``).

    Raises: BadInput if a package is missing.
    """
    from flows.errors import BadInput, Problem
    from flows.signature import read_signature

    target, takes = str(node["_target_"]), read_signature(str(node["_target_"])).parameters
    settings = {key: value for key, value in node.items() if not key.startswith("_")}
    if jobs is not None and "jobs" in takes:
        settings["jobs"] = jobs
    if "folder" in takes and not settings.get("folder"):
        settings["folder"] = str(directory / "launcher")
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)(**settings)
    except ImportError as error:
        fix = f"pip install {error.name or 'what it imports'}, or take the launcher of this machine, sweep=grid"
        raise BadInput(Problem("configuration", "sweep.launcher", f"{error}", got=target, fix=fix)) from error


def arm_environment() -> dict[str, str]:
    """This process's environment, in which a run elsewhere finds the same code."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(dict.fromkeys(filter(None, [root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])))
    return {**os.environ, "PYTHONPATH": path}
