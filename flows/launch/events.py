"""From whatever happens in a run to whoever wants to know: console, tracker, Prefect."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

Event = dict[str, Any]
Listener = Callable[[Event], None]
Emit = Callable[[Event], None]


class Fanout:
    """Passes events to listeners one at a time, in order, from a thread of its own.

    A slow listener delays neither a worker nor the driver; one that raises is named once and left out afterwards, since
    no tracker may stop a run.
    """

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners = list(listeners)
        self._queue: queue.SimpleQueue[Event | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._pass_on, name="events", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        self._queue.put(event)

    def add(self, listener: Listener) -> None:
        """Let ``listener`` hear what is emitted from now on."""
        self._listeners.append(listener)

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until everything emitted so far was passed on; False if the listeners needed longer."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self, timeout_s: float = 60.0) -> bool:
        """Flush and end; what is emitted afterwards is not heard, what a listener emits meanwhile is."""
        self.flush(timeout_s / 2)
        self._queue.put(None)
        self._thread.join(timeout_s / 2)
        return not self._thread.is_alive()

    def __enter__(self) -> Fanout:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _pass_on(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._tell(item)

    def _tell(self, event: Event) -> None:
        broken: list[Event] = []
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception as error:
                self._listeners.remove(listener)
                name = getattr(listener, "__qualname__", type(listener).__qualname__)
                text = f"{name} failed and gets no further events: {type(error).__name__}: {error}"
                broken.append({"event": "say", "stage": None, "text": text})
        for event in broken:
            if not self._listeners:
                print(event["text"], file=sys.stderr)
            self._tell(event)
