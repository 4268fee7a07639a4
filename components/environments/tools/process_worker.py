"""The other side of `process`: one process holds the tools and forks another for every episode.

Episodes are asked in JSON, one line each: ``{"task": …}`` is answered by ``{"pid": …}``, then ``{"call": …}`` by
``{"kind": …, "text": …}`` and ``{"state": true}`` by ``{"state": …}``; any of them by ``{"broken": why}`` or
``{"late": why}``. An answer repeats its request's ``number``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from components.environments.sandbox.privileges import adopt_orphans, die_with_parent
from components.environments.tools.host import Here, from_json
from components.types import Task

Answer = Callable[[Mapping[str, Any], Any], tuple[Any, Mapping[str, Any]]]


def main(handle: int) -> None:
    """Fork an episode for every socket that arrives, until the other end is gone."""
    control = socket.socket(fileno=handle)
    settings: dict[str, Any] = pickle.loads(_exactly(control, int.from_bytes(_exactly(control, 8), "big")))
    try:
        settings["tools"] = pickle.loads(settings["tools"])
    except BaseException as error:
        settings |= {"broken": f"the tools cannot be imported in their own process: {type(error).__name__}: {error}"}
    fork_for_each(control, lambda request, host: _answer(request, host, settings), settings.get("memory_mib", 0))


def fork_for_each(control: socket.socket, answer: Answer, memory_mib: int = 0) -> None:
    """Fork a process for every socket that ``control`` brings, which answers what is asked there; then end them all.

    What an episode leaves behind, in sessions of its own even, is killed when the episode has ended (Linux).

    Args:
        answer: (request, what it returned before, at first None) -> (what is to be kept, reply); runs in the fork.
        memory_mib: address space of each; 0: as much as there is.
    """
    adopt_orphans()
    known = _children()  # importing the tools may have started some
    signal.signal(signal.SIGCHLD, lambda *_: _reap(known))
    episodes: set[int] = set()
    while True:
        data, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            break
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # or the new one might pass for an orphan
        pid = os.fork()
        if pid == 0:
            control.close()
            _episode(socket.socket(fileno=handles[0]), answer, memory_mib)
        known.add(pid)
        episodes = (episodes & known) | {pid}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.close(handles[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for child in episodes & known:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        known.discard(child)
    while _reap(known):
        time.sleep(0.001)


def _reap(known: set[int]) -> bool:
    """Kill children that are not ``known``, which are what ended episodes left; whether there were any."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            known.discard(pid)
    orphans = _children() - known
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(orphans)


def _children() -> set[int]:
    """Of this process; empty where the system does not tell."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= set(map(int, listed.read_text().split()))
    return found


def _episode(connection: socket.socket, answer: Answer, memory_mib: int) -> NoReturn:
    """Everything from the fork to the end of the process."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        adopt_orphans()  # what a tool starts belongs to its episode as long as that lasts
        mine = os.getpid()
        with contextlib.suppress(OSError, AttributeError):  # not Linux: the socket's end has to do
            die_with_parent()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        _limit(memory_mib)
        random.seed(0)
        lines = connection.makefile("rb")
        kept: Any = None
        for line in lines:
            request = json.loads(line)
            number = request.pop("number", None)
            try:
                kept, reply = answer(request, kept)
            except TimeoutError as error:
                reply = {"late": str(error)}
            except BaseException as error:  # SystemExit as well: a tool does not end its process by an exception
                reply = {"broken": f"{type(error).__name__}: {error}"[:2000]}
            if os.getpid() != mine:  # a tool forked, and came back in both
                break
            connection.sendall(json.dumps({**reply, "number": number}).encode() + b"\n")
    finally:
        os._exit(0)


def _answer(request: Mapping[str, Any], host: Here | None, settings: Mapping[str, Any]) -> tuple[Here | None, Any]:
    if "broken" in settings:
        return None, {"broken": settings["broken"]}
    if "task" in request:
        task = None if request["task"] is None else Task.from_json(request["task"])
        return Here(settings["tools"], task, settings["max_chars"]), {"pid": os.getpid()}
    assert host is not None
    if "state" in request:
        return host, {"state": host.state()}
    said = host.call(from_json(request["call"]))
    return host, {"kind": said.kind, "text": said.text}


def _limit(memory_mib: int) -> None:
    if memory_mib:
        import resource  # not on Windows

        with contextlib.suppress(ValueError, OSError):  # macOS takes no such limit
            resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))


def _exactly(control: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = control.recv(count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
