"""SQLite that does not wait for the disk at every write: a run of sixteen stages writes some three hundred times.

With a write-ahead log only its checkpoints wait. A crash of a process loses nothing, one of the machine at most the
last writes, and the database stays whole. Processes of several machines cannot share such a log, so a database on a
network file system is left as it is.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

_OF_ONE_MACHINE = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs")


def spare_the_disk(database: Path) -> None:
    """Give the database a write-ahead log, and have connections made from now on wait at its checkpoints only."""
    if file_system(database) not in _OF_ONE_MACHINE:
        return
    with (
        contextlib.suppress(sqlite3.OperationalError),  # somebody is at work on it: the next one does it
        contextlib.closing(sqlite3.connect(database, timeout=1)) as connection,
    ):
        connection.execute("PRAGMA journal_mode=WAL")
    if not event.contains(Engine, "connect", _connected):
        event.listen(Engine, "connect", _connected)


def _connected(connection: Any, _: Any) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
        connection.execute("PRAGMA synchronous=NORMAL")


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system a path lies on, as Linux names it; "" elsewhere."""
    here, best, found = os.path.realpath(path), "", ""
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, kind, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            if (here == place or here.startswith(place.rstrip("/") + "/")) and len(place) >= len(best):
                best, found = place, kind
    return found
