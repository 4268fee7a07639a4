"""Several math workers. A check has a budget of CPU time: the verdict depends on the answer, not on the load."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

_ROOT = Path(__file__).parents[2]
_TRIES = 2
_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request.

    Attributes:
        outcome: "answered"; "cpu_limit": the check used up its CPU time, which is the answer's fault; "failed": the
            worker died or stood still twice, which is not.
        equal: the verdict, False where there is none.
        why: cause of a failure.
    """

    outcome: Literal["answered", "cpu_limit", "failed"]
    equal: bool = False
    why: str = ""


class MathPool:
    """Checks requests in ``workers`` processes that start with the first request. Safe to use from several threads.

    Args:
        workers: processes; how many makes no difference to any verdict.
        cpu_seconds: CPU time of one check.
        wall_seconds: time after which a check that has not used up its CPU time is taken for stuck: its worker is
            replaced and the check done again, once. The clock starts when a worker takes the request.
        memory: address space of a worker, bytes.
    """

    def __init__(
        self, *, workers: int = 2, cpu_seconds: float = 1.0, wall_seconds: float = 60.0, memory: int = 2 * 2**30
    ) -> None:
        for name, value in (("workers", workers), ("cpu_seconds", cpu_seconds), ("wall_seconds", wall_seconds)):
            if value <= 0:
                raise ValueError(f"math verifier: {name} must be positive (got {value})")
        self.workers, self.cpu_seconds, self.wall_seconds, self.memory = workers, cpu_seconds, wall_seconds, memory
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def map(self, requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """Replies in the order of the requests."""
        with self._lock:
            if self._process != os.getpid():  # a fork of the process that started them: not ours to talk to
                self._idle, self._process = [], os.getpid()
            return _Round(self, requests).run()

    def close(self) -> None:
        """End the workers; the next request starts new ones."""
        with self._lock:
            for worker in self._idle:
                worker.end()
            self._idle = []

    def pids(self) -> list[int]:
        """Processes of the idle workers (each has a child that does the checks)."""
        return [worker.process.pid for worker in self._idle]

    def take(self, count: int) -> list[_Worker]:
        """``count`` workers that are ready."""
        taken, self._idle = self._idle[:count], self._idle[count:]
        taken += [_Worker(self.memory) for _ in range(count - len(taken))]  # import side by side
        for worker in taken:
            worker.await_ready()
        return taken

    def give_back(self, workers: Sequence[_Worker]) -> None:
        self._idle.extend(workers)


@cache
def shared_pool(workers: int, cpu_seconds: float, wall_seconds: float) -> MathPool:
    """One pool per process and settings, whoever asks."""
    return MathPool(workers=workers, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)


class _Round:
    """One call of `MathPool.map`: a request is in at most one worker, a worker has at most one request."""

    def __init__(self, pool: MathPool, requests: Sequence[Mapping[str, Any]]) -> None:
        self.pool, self.requests = pool, requests
        self.waiting = deque(range(len(requests)))
        self.replies: list[Reply | None] = [None] * len(requests)
        self.tries = [0] * len(requests)
        self.busy: dict[_Worker, tuple[int, float]] = {}

    def run(self) -> list[Reply]:
        free = self.pool.take(min(self.pool.workers, len(self.requests)))
        with selectors.DefaultSelector() as selector:
            try:
                while self.waiting or self.busy:
                    while self.waiting and free:
                        free += self._hand_out(free.pop(), selector)
                    free += self._collect(selector)
            finally:  # interrupted: nobody will read what these still say
                for worker in self.busy:
                    worker.end()
                self.pool.give_back(free)
        return [reply for reply in self.replies if reply is not None]

    def _hand_out(self, worker: _Worker, selector: selectors.BaseSelector) -> list[_Worker]:
        index = self.waiting.popleft()
        self.tries[index] += 1
        self.busy[worker] = (index, time.monotonic() + self.pool.wall_seconds)
        selector.register(worker.output, selectors.EVENT_READ, worker)
        try:
            worker.send({**self.requests[index], "cpu_seconds": self.pool.cpu_seconds})
        except OSError:  # it died while it was idle
            return [self._lost(worker, selector, "the worker had died")]
        return []

    def _collect(self, selector: selectors.BaseSelector) -> list[_Worker]:
        """Wait for the next event; the workers that are free after it."""
        if not self.busy:
            return []
        patience = max(0.0, min(deadline for _, deadline in self.busy.values()) - time.monotonic())
        free = []
        for key, _ in selector.select(patience):
            worker: _Worker = key.data
            message = worker.receive()
            if message is None:
                free.append(self._lost(worker, selector, "the worker died"))
            elif "died" in message:
                free.append(self._again(worker, selector, f"the check died of {message['died']}"))
            elif message:
                self.replies[self.busy[worker][0]] = _reply(message)
                free.append(self._done(worker, selector))
        now = time.monotonic()
        for worker in [worker for worker, (_, deadline) in self.busy.items() if deadline < now]:
            seconds, cpu = self.pool.wall_seconds, self.pool.cpu_seconds
            why = f"no answer after {seconds:g} s, in which it did not use up its {cpu:g} s of CPU time"
            free.append(self._lost(worker, selector, why))
        return free

    def _done(self, worker: _Worker, selector: selectors.BaseSelector) -> _Worker:
        selector.unregister(worker.output)
        del self.busy[worker]
        return worker

    def _again(self, worker: _Worker, selector: selectors.BaseSelector, why: str) -> _Worker:
        index = self.busy[worker][0]
        if self.tries[index] < _TRIES:
            self.waiting.appendleft(index)
        else:
            self.replies[index] = Reply("failed", why=f"math verifier: {why}, {_TRIES} times")
        return self._done(worker, selector)

    def _lost(self, worker: _Worker, selector: selectors.BaseSelector, why: str) -> _Worker:
        self._again(worker, selector, why)
        worker.end()
        return self.pool.take(1)[0]


class _Worker:
    """A process that serves one request at a time."""

    def __init__(self, memory: int) -> None:
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "components.rewards.math_worker", str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # so that its child ends with it
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        self._buffer = b""
        self._ready = False

    def await_ready(self) -> None:
        """Raises RuntimeError if the worker cannot start."""
        deadline = time.monotonic() + _START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            while not self._ready:
                message = self.receive() if selector.select(max(0.0, deadline - time.monotonic())) else None
                if message is None:
                    self.end()
                    raise RuntimeError(
                        f"the math verifier does not start (exit code {self.process.returncode}). "
                        f"Fix: see why by running {sys.executable} -m components.rewards.math_worker 2000000000"
                    )
                self._ready = "ready" in message

    def send(self, request: Mapping[str, Any]) -> None:
        rest = memoryview(json.dumps(request).encode() + b"\n")  # less than a pipe holds, so it never waits
        while rest:
            rest = rest[os.write(self.input.fileno(), rest) :]

    def receive(self) -> dict[str, Any] | None:
        """The next message, {} if it is not complete yet, None if there will be no more."""
        data = os.read(self.output.fileno(), 65_536)
        self._buffer += data
        line, newline, rest = self._buffer.partition(b"\n")
        if newline:
            self._buffer = rest
            return json.loads(line)
        return {} if data else None

    def end(self) -> None:
        """Kill the worker and its child, and wait for it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.input.close()
        self.output.close()

    def __del__(self) -> None:
        process = getattr(self, "process", None)
        if process is not None and process.poll() is None:
            self.end()


def _reply(message: Mapping[str, Any]) -> Reply:
    if "cpu_limit" in message:
        return Reply("cpu_limit")
    return Reply("answered", bool(message["equal"]), str(message.get("why", "")))
