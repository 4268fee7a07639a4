"""Which process made a record, so that a later one can tell whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def process_mark(pid: int | None = None) -> str:
    """``host/pid@start`` of this process, or of another one here."""
    return f"{socket.gethostname()}/{process_of(str(pid or os.getpid()))}"


def is_gone(mark: str) -> bool:
    """Whether a process of this machine has ended; False for those of other machines and for no mark."""
    host, _, process = mark.partition("/")
    return host == socket.gethostname() and process != process_of(process.partition("@")[0])


def process_of(pid: str) -> str:
    """``pid@start``: a process id is used again, its start time is not. Without /proc only the id tells."""
    try:
        return f"{pid}@{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        try:
            os.kill(int(pid), 0)
        except (ValueError, ProcessLookupError, PermissionError, OverflowError):
            return ""
        return f"{pid}@"
