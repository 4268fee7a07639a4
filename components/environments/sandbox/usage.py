"""What a program is charged for besides CPU time: time in which it waits by its own choice.

A program is running, waiting for a CPU, or waiting for something else (asleep, a lock, input that never comes). The
first is bounded by the kernel (RLIMIT_CPU); the second is the machine's load and costs nothing; the third is the
program's own. Linux tells them apart in ``/proc/PID/task/*/schedstat``: nanoseconds on a CPU, and runnable without one.
Where that cannot be read, all waiting counts as the machine's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from components.environments.sandbox.outcome import Limits, Outcome

_EVERY = 0.1  # seconds between looks
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage:
    """Charges one program. Only its own turns count: between them nothing was asked of it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pid = 0
        self._born = self._last = self._began = time.monotonic()
        self._earlier = 0.0  # seconds of wall time of the turns before this one

    def follow(self, pid: int) -> None:
        """The process, by the id that it has out here."""
        self._pid = pid

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The program's turn: until the end of the block something is expected of it."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._earlier += time.monotonic() - self._began

    def charge(self) -> tuple[Outcome, str] | None:
        """The limit that is exceeded, None while none is. Ask often: it looks only now and then."""
        now = time.monotonic()
        if now - self._last < _EVERY:
            return None
        self._last = now
        active = active_seconds(self._pid)
        if active is not None and self._earlier + now - self._began - active > self._limits.idle_seconds:
            return "cpu_limit", f"waited for {self._limits.idle_seconds:g} s without computing"
        if now - self._born > self._limits.wall_seconds:
            if threads(self._pid) > 1:  # they may wait for each other, which nobody can tell from waiting for a CPU
                return "cpu_limit", f"still at work with several threads after {self._limits.wall_seconds:g} s"
            return "infra", f"took more than {self._limits.wall_seconds:g} s of wall time: the machine is overloaded"
        return None


def threads(pid: int) -> int:
    """Threads of a process; 0 where the kernel doesn't tell."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if pid else 0
    except OSError:
        return 0


def active_seconds(pid: int) -> float | None:
    """Seconds that all threads together ran, or could have run had there been a CPU.

    None if the kernel doesn't tell, or one of them is about to run or waits for a disk: then it is not idle now.
    """
    if not pid:
        return None
    running = waiting = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            task = f"/proc/{pid}/task/{thread}"
            on_cpu, delayed, _ = _read(f"{task}/schedstat").split()
            running, waiting = running + int(on_cpu), waiting + int(delayed)
            if _fields(f"{task}/stat")[0] in "RD":
                return None
        fields = _fields(f"/proc/{pid}/stat")
    except (OSError, ValueError):
        return None
    ended_too = (int(fields[11]) + int(fields[12])) / _TICKS  # user and system time, of ended threads as well
    return max(running / 1e9, ended_too) + waiting / 1e9


def _fields(path: str) -> list[str]:
    """Of a ``stat`` file, from the state on; the name before it may hold anything."""
    return _read(path).rpartition(")")[2].split()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
