"""One killable process that scores for `Isolated`, seen from the parent: start, give a job, look, kill."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.types import Rollout, Score, Task

Job = Sequence[tuple[Task, Rollout]]
STARTUP_S = 120.0  # for importing the term's module
_MAX_ANSWER = 64 * 2**20  # bytes
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from components.rewards.isolated_worker import main; main(int(sys.argv[2]))"
)


class Worker:
    """A child process with one term in it. A plain child, not a fork: the parent holds torch and its threads.

    Args:
        term: the pickled term.
        seconds: deadline per rollout of a job, of the process's own time (`Clock`), from when it starts on the job.
    """

    def __init__(self, term: bytes, seconds: float) -> None:
        self.seconds = seconds
        self._job: Job | None = None
        self._ready = False
        self._line = b""
        lifeline, self._alive = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(lifeline)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(lifeline,),
                process_group=0,  # so that what the term starts is killed with it
                bufsize=0,
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(lifeline)
        self._clock = Clock(self.process.pid)
        self._send(pickle.dumps(term))

    def fileno(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def give(self, job: Job) -> None:
        """The next job; the last one has been answered. It is sent once the term is there."""
        self._job = job
        if self._ready:
            self._begin()

    def remaining(self) -> float:
        """Seconds of its own time that the process has left; none if it is over its deadline."""
        return self._limit() - self._clock.elapsed()

    def look(self) -> list[Score] | str | None:
        """Read what is there: the job's scores, why there are none, or None if the process is still at it.

        A process that died, or sent what it should not, is gone afterwards (`kill`).
        """
        assert self.process.stdout is not None
        data = os.read(self.fileno(), 2**20)
        self._line += data
        if not data or len(self._line) > _MAX_ANSWER:
            return f"lost its process, which {'sent too much' if data else self.kill()}"
        while b"\n" in self._line:
            line, _, self._line = self._line.partition(b"\n")
            message = json.loads(line)
            if "broken" in message:
                return message["broken"]
            if "scores" in message:
                self._job = None
                return [Score(*score) for score in message["scores"]]
            self._ready = True
            if self._job is not None:
                self._begin()
        return None

    def overdue(self) -> str:
        """What to say of a process over its deadline."""
        doing = "ran over its deadline of" if self._ready else "was not there after"
        return f"{doing} {self._limit():g} s and was killed"

    def kill(self) -> str:
        """End the process and whatever it started; says how it ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def _limit(self) -> float:
        return self.seconds * len(self._job or ()) if self._ready else STARTUP_S

    def _begin(self) -> None:
        self._clock.start()
        self._send(pickle.dumps(self._job))

    def _send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError):  # it died; the next look says so
            while view:
                view = view[self.process.stdin.write(view) or 0 :]


class Clock:
    """Time that a process had to itself: wall clock, less the time its main thread waited for a core.

    On a busy machine a function takes longer without doing more; a deadline by this clock does not see the difference.
    Where the kernel does not say how long it waited (not Linux), it is the wall clock.
    """

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/schedstat")
        self.start()

    def start(self) -> None:
        self._since, self._waited_before = time.monotonic(), self._waited()

    def elapsed(self) -> float:
        """Seconds since `start`."""
        return time.monotonic() - self._since - (self._waited() - self._waited_before)

    def _waited(self) -> float:
        try:
            return int(self._file.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def send_form(term: Any) -> bytes:
    """The term as it is sent to its process.

    Raises:
        ValueError: it cannot be found again by its name there (a lambda, a function inside a function, a script's).
    """
    try:
        data = pickle.dumps(term)
    except Exception as error:
        raise ValueError(f"{error}") from error
    if b"__main__" in data:
        raise ValueError("it is defined in a script, which another process cannot import")
    return data
