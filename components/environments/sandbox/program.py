"""One program in a sandbox, seen from outside: what is sent to it, what it says, how long it may take, how it ended."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from components.environments.sandbox.outcome import Limits, Outcome, Stopped
from components.environments.sandbox.usage import Usage
from components.environments.sandbox.worker import Server

_TICK = 0.1  # seconds between looks at the clock
_GRACE = 10.0  # seconds of wall time for a killed program to be gone
Line = dict[str, Any]


class Program:
    """A running program; a context manager that leaves nothing of it behind.

    Args:
        server: idle, and free for this program alone until it is closed.
        job: see `runner`.
        stdin: all of its standard input.
    """

    def __init__(self, server: Server, job: Line, limits: Limits, stdin: bytes = b"") -> None:
        self.server, self.limits = server, limits
        self.status: int | None = None  # wait status, once it is gone
        self.cpu = 0.0
        self._ready, self._killed = False, False
        self._usage = Usage(limits)
        self._selector = selectors.DefaultSelector()
        self._received = {"stdout": bytearray(), "stderr": bytearray(), "answers": bytearray()}
        self._unread = 0  # start of the first answer that was not yet asked for
        self._sending: dict[int, bytearray] = {}
        pipes = {name: os.pipe() for name in ("stdin", "stdout", "stderr", "job", "answers")}
        mine = {name: pair[name in ("stdin", "job")] for name, pair in pipes.items()}
        theirs = [pair[name not in ("stdin", "job")] for name, pair in pipes.items()]
        for name, handle in mine.items():
            os.set_blocking(handle, False)
            if name in self._received:
                self._selector.register(handle, selectors.EVENT_READ, name)
        self._selector.register(server.control, selectors.EVENT_READ, "control")
        self._handles, self._job = set(mine.values()), mine["job"]
        try:
            server.start(limits, theirs)
        except Stopped:
            self.close()
            raise
        finally:
            for handle in theirs:
                os.close(handle)
        self._send(self._job, _line(job))
        self._send(mine["stdin"], stdin)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, line: Line) -> None:
        """Send one line."""
        self._send(self._job, _line(line))

    def listen(self) -> Line:
        """The next answer; waiting for it is the program's turn. Raises Stopped."""
        answers = self._received["answers"]
        self._until(lambda: answers.find(b"\n", self._unread) >= 0)
        end = answers.index(b"\n", self._unread)
        line, self._unread = bytes(answers[self._unread : end]), end + 1
        try:
            value = json.loads(line, object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError):
            raise Stopped("protocol", f"an answer that is not JSON: {line[:80]!r}") from None
        if not isinstance(value, dict):
            raise Stopped("protocol", f"an answer that is not an object: {line[:80]!r}")
        return value

    def finish(self) -> int:
        """Wait for the program's own end; its exit code. Raises Stopped, if it did not end by itself."""
        self._until(lambda: self.status is not None)
        assert self.status is not None
        if os.WIFSIGNALED(self.status):
            raise Stopped(*self._cause())
        return os.waitstatus_to_exitcode(self.status)

    def rest(self) -> bytes:
        """Answers that arrived and nobody asked for."""
        return bytes(self._received["answers"][self._unread :])

    def text(self, stream: str) -> str:
        return bytes(self._received[stream]).decode("utf-8", errors="replace")

    def close(self) -> None:
        """Kill it if it still runs, wait until the server has reaped it, close all pipes."""
        try:
            if self.status is None and self.server.process.poll() is None:
                self._kill()
                deadline = time.monotonic() + _GRACE
                while self.status is None and (left := deadline - time.monotonic()) > 0:
                    if select.select([self.server.control], [], [], left)[0]:
                        self._hear()
        except Stopped:
            pass  # the server is gone, and the program with it
        finally:
            if self.status is None:
                self.server.close()
            self._selector.close()
            for handle in self._handles:
                os.close(handle)
            self._handles.clear()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool]) -> None:
        with self._usage.turn():
            self._loop(condition)

    def _loop(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.status is not None:
                raise Stopped(*self._cause())
            events = self._selector.select(_TICK)
            for key, _ in events:
                if key.data == "control":
                    self._hear()
                elif key.data == "send":
                    self._write(key.fd)
                else:
                    self._read(key.fd, key.data)
            if self.status is not None:
                self._drain()
            elif (charge := self._usage.charge()) is not None:
                self._kill()
                raise Stopped(*charge)

    def _hear(self) -> None:
        for line, pid in self.server.receive():
            match line[:1]:
                case b"P":
                    self._usage.follow(pid)
                case b"R":
                    self._ready = True
                case b"E":
                    raise Stopped("infra", f"the sandbox could not be set up: {line[1:].decode(errors='replace')}")
                case b"X":
                    end = json.loads(line[1:])
                    self.status, self.cpu = end["status"], end["cpu"]

    def _read(self, handle: int, name: str) -> bool:
        """Take what is there; False when nothing is."""
        try:
            part = os.read(handle, 1 << 16)
        except BlockingIOError:
            return False
        if not part:
            self._selector.unregister(handle)
            return False
        received = self._received[name]
        received += part
        if len(received) > self.limits.output_bytes:
            self._kill()
            outcome: Outcome = "protocol" if name == "answers" else "fail"
            raise Stopped(outcome, f"wrote more than {self.limits.output_bytes} bytes on {name}")
        return True

    def _drain(self) -> None:
        """What was written before the end; whoever else may hold the pipes is not waited for."""
        for key in list(self._selector.get_map().values()):
            if key.data in self._received:
                while self._read(key.fd, key.data):
                    pass

    def _send(self, handle: int, data: bytes) -> None:
        if handle not in self._sending:
            self._sending[handle] = bytearray()
            self._selector.register(handle, selectors.EVENT_WRITE, "send")
        self._sending[handle] += data
        self._write(handle)

    def _write(self, handle: int) -> None:
        data = self._sending[handle]
        try:
            while data:
                del data[: os.write(handle, data[: 1 << 16])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            data.clear()  # it does not read; that is its affair
        del self._sending[handle]
        self._selector.unregister(handle)
        if handle != self._job:  # the end of its input
            self._close(handle)

    def _close(self, handle: int) -> None:
        if handle in self._handles:
            self._handles.discard(handle)
            os.close(handle)

    def _kill(self) -> None:
        if not self._killed:
            self._killed = True
            self.server.kill_program()

    def _cause(self) -> tuple[Outcome, str]:
        """Whose doing it is that the program is gone."""
        assert self.status is not None
        if not self._ready:
            return "infra", "the sandbox could not be set up: its process ended before it was locked in"
        if not os.WIFSIGNALED(self.status):
            return "fail", f"ended with exit code {os.waitstatus_to_exitcode(self.status)} before it had answered"
        number = os.WTERMSIG(self.status)
        if number in (signal.SIGKILL, signal.SIGXCPU):
            # The kernel counts what it limits by clock ticks, and what it reports exactly: they differ somewhat.
            if number == signal.SIGXCPU or self.cpu > 0.8 * self.limits.cpu_seconds:
                return "cpu_limit", f"used its {self.limits.cpu_seconds} s of CPU time"
            # A program cannot send this signal to itself, so that it was the machine: out of memory, or an operator.
            return "infra", "was killed by the system"
        return "fail", f"crashed with signal {signal.Signals(number).name}"


def _line(value: Line) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> Line:
    if len(pairs) != len({key for key, _ in pairs}):
        raise ValueError("a key twice")
    return dict(pairs)
