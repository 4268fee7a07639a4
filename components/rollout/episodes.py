"""Work that may take time, each piece in a thread of its own, while the engine decodes what does not wait for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any


class Late(TimeoutError):
    """A piece of work that was not done in time. Its thread is left to itself: nothing can end a thread."""


class Errands:
    """Pieces of work under way, by key. To be used from one thread.

    The clock of each starts with its thread, which is at once: nothing queues. Threads are daemons, so that one that
    hangs keeps no process from ending.

    Args:
        seconds: for each piece of work.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"the environment's seconds must be positive, got {seconds}")
        self.seconds = seconds
        self._deadline: dict[Hashable, float] = {}  # in the order of starting, hence of ending
        self._done: queue.SimpleQueue[tuple[Hashable, float, Any]] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._deadline)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._deadline

    def send(self, key: Hashable, work: Callable[[], Any]) -> None:
        """Start a piece of work; no other with this key may be under way."""
        assert key not in self._deadline
        deadline = self._deadline[key] = time.monotonic() + self.seconds

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # whatever it is, it concerns this piece of work only
                result = error
            self._done.put((key, deadline, result))

        threading.Thread(target=run, daemon=True, name=f"episode {key}").start()

    def back(self, *, wait: bool = False) -> list[tuple[Hashable, Any]]:
        """(key, result or exception) of what has come back or run out of time since; `Late` for the latter.

        Args:
            wait: for at least one, if any are under way.
        """
        found: list[tuple[Hashable, Any]] = []
        while self._deadline:
            left = next(iter(self._deadline.values())) - time.monotonic()
            try:
                if wait and not found and left > 0:
                    key, deadline, result = self._done.get(timeout=left)
                else:
                    key, deadline, result = self._done.get_nowait()
            except queue.Empty:
                if left > 0 and (found or not wait):
                    break
                if left <= 0:
                    key = next(iter(self._deadline))
                    del self._deadline[key]
                    found.append((key, Late(f"no answer within {self.seconds:g} s")))
                continue
            if self._deadline.get(key) == deadline:  # else it came too late
                del self._deadline[key]
                found.append((key, result))
        return found


def do(work: Callable[[], Any], seconds: float) -> Any:
    """One piece of work, waited for. Raises `Late`, and what the work raises."""
    errands = Errands(seconds)
    errands.send(0, work)
    ((_, result),) = errands.back(wait=True)
    if isinstance(result, BaseException):
        raise result
    return result
