"""Tools in processes of their own, one per episode: a tool that hangs or ends its interpreter ends its episode only."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.tools.formats import Call, Malformed
from components.environments.tools.host import MAX_STATE, Broken, Said, as_json
from components.types import Task

STARTUP_S = 120.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from components.environments.tools.process_worker import main; main(int(sys.argv[2]))"
)


class Processes:
    """Forks a process per episode from one that has the tools imported. Usable from several threads.

    What tools print goes nowhere; what they return is cut before it is sent.

    Args:
        tools: functions and toolsets that another process can import.
        seconds: for one call, from when it is made.
        memory_mib: address space per episode.

    Raises:
        ValueError: a tool that another process cannot import.
    """

    def __init__(self, tools: Sequence[Any], *, max_chars: int, seconds: float, memory_mib: int) -> None:
        self.max_chars, self.seconds, self.memory_mib = max_chars, seconds, memory_mib
        try:
            self._tools = pickle.dumps(tuple(tools))
        except Exception as error:
            raise ValueError(f"tools: cannot be sent to a process of their own ({error}). {_REMEDY}") from error
        if b"__main__" in self._tools:
            raise ValueError(f"tools: one is defined in a script, which another process cannot import. {_REMEDY}")
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._owner = 0

    def open(self, task: Task | None) -> Elsewhere:
        """The tools of one episode. Raises Broken."""
        mine, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                socket.send_fds(self._started(), [b"E"], [theirs.fileno()])
            except OSError:  # it died: once more with a new one
                self._stop()
                socket.send_fds(self._started(), [b"E"], [theirs.fileno()])
        return Elsewhere(mine, task, self)

    def close(self) -> None:
        """End the process, and with it all episodes."""
        with self._lock:
            self._stop()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("processes cannot be sent to another process")

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._stop()

    def _started(self) -> socket.socket:
        if self._owner != os.getpid():  # in a fork: the other one's is not ours to use
            self._control = None
        if self._control is None:
            self._owner = os.getpid()
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            settings = pickle.dumps({"tools": self._tools, "memory_mib": self.memory_mib, "max_chars": self.max_chars})
            self._control.sendall(len(settings).to_bytes(8, "big") + settings)
        return self._control

    def _stop(self) -> None:
        if self._control is not None and self._owner == os.getpid():
            self._control.close()  # it ends itself and what it forked
            self._process.wait()
        self._control = None


_REMEDY = "Fix: define it at the top level of a module on the path, or set isolate: never"


class Conversation:
    """Questions to the process of one episode, a JSON line each; it is killed when it is late.

    A question has a number that its answer repeats, so that what a tool writes to the connection is not taken for one.

    Args:
        most: bytes of an answer.
    """

    def __init__(self, connection: socket.socket, most: int) -> None:
        self._connection, self._most = connection, most
        self._received = bytearray()
        self._pid = 0

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Raises Broken, and TimeoutError."""
        deadline = time.monotonic() + seconds
        number = secrets.randbits(48)
        if self._received:
            raise Broken(_OUT_OF_TURN)
        try:
            self._connection.settimeout(seconds)
            self._connection.sendall(json.dumps({**request, "number": number}).encode() + b"\n")
            while (end := self._received.find(b"\n")) < 0:
                self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
                data = self._connection.recv(1 << 16)
                if not data:
                    raise Broken("the process of the tools ended")
                self._received += data
                if len(self._received) > self._most:
                    raise Broken("the process of the tools sent too much")
        except TimeoutError:
            self._kill()
            raise TimeoutError(f"a tool did not answer within {seconds:g} s") from None
        except OSError as error:
            raise Broken(f"the process of the tools ended: {error}") from None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        reply = _reply(line, number)
        self._pid = self._pid or int(reply.get("pid", 0))
        if "late" in reply:
            raise TimeoutError(reply["late"])
        if "broken" in reply:
            raise Broken(reply["broken"])
        return reply

    def close(self) -> None:
        self._kill()
        self._connection.close()

    def _kill(self) -> None:
        """The whole process group: what a tool started goes too."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            self._pid = 0


_OUT_OF_TURN = "the process of the tools answered out of turn"


def _reply(line: bytes, number: int) -> dict[str, Any]:
    """The answer to a question. Raises Broken: to another one, or none at all."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise Broken(_OUT_OF_TURN) from None
    if not isinstance(reply, dict) or reply.pop("number", None) != number:
        raise Broken(_OUT_OF_TURN)
    return reply


class Elsewhere:
    """`Host` whose tools live in a process of this episode's own."""

    def __init__(self, connection: socket.socket, task: Task | None, settings: Processes) -> None:
        self._seconds = settings.seconds
        self._process = Conversation(connection, MAX_STATE + 8 * settings.max_chars)
        self._process.ask({"task": None if task is None else task.to_json()}, STARTUP_S)

    def call(self, call: Call | Malformed) -> Said:
        said = self._process.ask({"call": as_json(call)}, self._seconds)
        return Said(said["kind"], said["text"])

    def state(self) -> dict[str, Any]:
        return self._process.ask({"state": True}, self._seconds)["state"]

    def close(self) -> None:
        self._process.close()
