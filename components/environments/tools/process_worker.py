"""The other side of `process`: one process holds the tools and forks another for every episode.

Episodes are asked in JSON, one line each: ``{"task": …}`` is answered by ``{"pid": …}``, then ``{"call": …}`` by
``{"kind": …, "text": …}`` and ``{"state": true}`` by ``{"state": …}``; any of them by ``{"broken": why}`` or
``{"late": why}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from components.environments.sandbox.privileges import die_with_parent
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

    Args:
        answer: (request, what it returned before, at first None) -> (what is to be kept, reply); runs in the fork.
        memory_mib: address space of each; 0: as much as there is.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for what was forked
    children: list[int] = []
    while True:
        data, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            break
        pid = os.fork()
        if pid == 0:
            control.close()
            _episode(socket.socket(fileno=handles[0]), answer, memory_mib)
        os.close(handles[0])
        children = [child for child in children if _lives(child)] + [pid]
    for child in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)


def _episode(connection: socket.socket, answer: Answer, memory_mib: int) -> NoReturn:
    """Everything from the fork to the end of the process."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
            try:
                kept, reply = answer(request, kept)
            except TimeoutError as error:
                reply = {"late": str(error)}
            except BaseException as error:  # SystemExit as well: a tool does not end its process by an exception
                reply = {"broken": f"{type(error).__name__}: {error}"[:2000]}
            connection.sendall(json.dumps({**reply, "number": request["number"]}).encode() + b"\n")
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


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _exactly(control: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = control.recv(count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
