"""A run that something else has started: it stops when its starter is gone, and tells it what happens."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any


def stop_when_input_ends(descriptor: int = 0) -> None:
    """Ask this process to stop, as SIGTERM does, when the other end of its input is closed or dies."""

    def wait() -> None:
        while os.read(descriptor, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="leash", daemon=True).start()


class EventStream:
    """Listener that writes each event as a line of JSON to a descriptor, until nobody reads it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._broken = descriptor, False

    def __call__(self, event: Mapping[str, Any]) -> None:
        rest = json.dumps({"time": time.time(), **event, "details": ""}, default=str).encode() + b"\n"
        while rest and not self._broken:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                self._broken = True
