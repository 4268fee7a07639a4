"""Requests to stop, as a file that every arm's starter sees wherever it works: a signal's number a line."""

from __future__ import annotations

import signal
from pathlib import Path


def ask_to_stop(requests: Path, signum: int | None) -> None:
    """Have every arm stop: the first time at its next step, the second time at once."""
    with requests.open("a") as file:
        file.write(f"{int(signum or signal.SIGTERM)}\n")


def requested(file: str) -> list[int]:
    """The signals asked for so far."""
    try:
        return [int(line) for line in Path(file).read_text().split()]
    except (OSError, ValueError):
        return []
