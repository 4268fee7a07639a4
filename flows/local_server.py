"""Servers of ours on 127.0.0.1: started once per directory, shared by every run there, stopped on request."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# port → (command line, environment)
Recipe = Callable[[int], tuple[Sequence[str], Mapping[str, str]]]


class ServerFailed(Exception):
    """A server could not be started or does not answer; says why and where its log lies."""


@dataclass(frozen=True)
class Server:
    """A server process. ``born`` tells it from a later process with the same number."""

    pid: int
    port: int
    born: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_running(self) -> bool:
        return _born(self.pid) == self.born


def find_server(home: Path) -> Server | None:
    """The server that runs for ``home``; it may still be starting."""
    try:
        server = Server(**json.loads((home / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return server if server.is_running() else None


def ensure_server(home: Path, preferred_port: int, recipe: Recipe) -> Server:
    """The server for ``home``, started if there is none. Returns before it answers: see `wait_until_it_answers`."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # those who come at the same time share one server
        return find_server(home) or _start(home, preferred_port, recipe)


def wait_until_it_answers(url: str, *, server: Server | None = None, log: Path | None = None, limit_s: float) -> None:
    """Block until ``url`` gives 200.

    Raises:
        ServerFailed: ``server`` ended meanwhile, or there was no answer within ``limit_s``.
    """
    see = f", see {log}" if log else ""
    deadline = time.monotonic() + limit_s
    while not answers(url):
        if server is not None and not server.is_running():
            raise ServerFailed(f"the server ended while it was starting{see}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"no answer from {url} within {limit_s:.0f} s{see}")
        time.sleep(0.2)
    if server is not None and not server.is_running():  # it was another one that answered
        raise ServerFailed(f"the server ended while it was starting{see}")


def answers(url: str) -> bool:
    """Whether a GET of ``url`` gives 200 within five seconds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def stop_server(home: Path, limit_s: float = 10.0) -> Server | None:
    """End the server of ``home`` and its children; the one that was running, or None. What it stored stays."""
    server = find_server(home)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if server is None or not server.is_running():
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signum)
        deadline = time.monotonic() + limit_s
        while server.is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
    (home / "server.json").unlink(missing_ok=True)
    return server


def free_port(preferred: int) -> int:
    """``preferred`` if nobody listens there, else one that the system chooses."""
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just given back is free
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]
    raise ServerFailed("no free port on 127.0.0.1")


def _reserve(port: int) -> socket.socket | None:
    """A name that stands for the port as long as somebody holds it; None if somebody does.

    A server binds its port seconds after it was chosen. It is handed the name, so that another one that is started
    meanwhile takes another port. Where there are no such names (not Linux) nothing is reserved.
    """
    holder = socket.socket(socket.AF_UNIX)
    if not sys.platform.startswith("linux"):
        return holder
    try:
        holder.bind(f"\0r1flow-port-{port}")
    except OSError:
        holder.close()
        return None
    return holder


def _start(home: Path, preferred_port: int, recipe: Recipe) -> Server:
    reserved = _reserve(preferred_port)
    port = free_port(preferred_port if reserved else 0)
    command, environment = recipe(port)
    with (home / "server.log").open("a") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # outlives whoever started it, and Ctrl-C
            pass_fds=[reserved.fileno()] if reserved else [],
        )
    if reserved:
        reserved.close()
    server = Server(process.pid, port, _born(process.pid) or "")
    draft = home / "server.json.tmp"
    draft.write_text(json.dumps(asdict(server)) + "\n")
    draft.rename(home / "server.json")
    return server


def _born(pid: int) -> str | None:
    """A mark of when a living process began; None if there is no such process."""
    try:
        os.kill(pid, 0)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except ProcessLookupError:
        return None
    except OSError:
        return "unknown"  # no /proc here: the number has to do
