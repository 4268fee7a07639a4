"""The machine's cores, shared by the stages that are being built."""

from __future__ import annotations

import threading

from flows.signals import Stop


class Slots:
    """Cores shared by the stages that are being built; whoever comes first in the pipeline and fits goes first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._waiting: dict[int, int] = {}
        self._changed = threading.Condition()

    def acquire(self, place: int, wanted: int, stop: Stop) -> None:
        """Block until ``wanted`` cores are free for the stage at ``place``.

        Raises:
            Interrupted: a stop was requested meanwhile.
        """
        with self._changed:
            self._waiting[place] = wanted
            try:
                self._changed.wait_for(lambda: stop.requested() or self._next() == place)
                stop.check()
                self._free -= wanted
            finally:
                del self._waiting[place]
                self._changed.notify_all()

    def release(self, held: int) -> None:
        with self._changed:
            self._free += held
            self._changed.notify_all()

    def _next(self) -> int | None:
        fitting = [place for place, wanted in self._waiting.items() if wanted <= self._free]
        return min(fitting, default=None)
