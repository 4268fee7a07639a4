"""Every event of a run in a file, one JSON object a line: what tools read when no tracker is there."""

from __future__ import annotations

import json
import time
from pathlib import Path

from components.tracking.events import Event


class EventLog:
    """Listener that appends events with their time (seconds since 1970) to a file.

    Progress is left out: it says nothing that the metrics do not say, and there is much of it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, event: Event) -> None:
        if event.get("event") != "progress":
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **event}, default=str) + "\n")

    def close(self) -> None:
        """Nothing is held open."""


class NoTracking:
    """Listener that forgets everything (``tracking=none``)."""

    def __call__(self, event: Event) -> None:
        pass

    def close(self) -> None:
        pass
