"""Stores that can't be used: a file of ours that is no database is set aside, an address MLflow refuses is named."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger("r1flow.tracking")
_MAGIC = b"SQLite format 3\0"
_WHOLE = 64 << 20  # bytes; of a larger file only the beginning is looked at, which takes no time


def set_aside_if_broken(database: Path) -> Path | None:
    """Move a SQLite file that holds no database any more out of the way, and say so; where it went.

    Call while no other process may create it. Raises: OSError if it can't be read or moved.
    """
    if not database.exists() or not (problem := what_is_wrong(database)):
        return None
    names = (database.with_name(f"{database.stem}.damaged-{n}{database.suffix}") for n in range(1, 10_000))
    target = next(path for path in names if not path.exists())
    for ending in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            database.with_name(database.name + ending).rename(target.with_name(target.name + ending))
    log.warning(
        "MLflow: %s can't be used (%s). It is now %s; a new store is begun, without what was recorded before",
        database,
        problem,
        target.name,
    )
    return target


def what_is_wrong(database: Path) -> str:
    """Why a file is no SQLite database; "" if it is one, and for one that is only busy or on a full disk."""
    with database.open("rb") as file:
        head = file.read(len(_MAGIC))
    if not head:  # SQLite's own form of an empty database
        return ""
    if head != _MAGIC:
        return "file is not a database"
    if database.stat().st_size > _WHOLE:
        return ""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=5)) as connection:
            [answer] = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if answer == "ok" else " ".join(str(answer).split())[:100]


@contextlib.contextmanager
def naming_the_variable(uri: str) -> Iterator[None]:
    """What MLflow says of an address it can't use becomes one line: the variable it comes from, and what to do."""
    try:
        yield
    except Exception as error:  # MLflow has one for each kind of store
        credentials, _, rest = uri.rpartition("@")
        shown = f"{credentials.partition('://')[0]}://…@{rest}" if credentials else uri
        reason = " ".join(str(error).split())[:80]
        raise ConnectionError(
            f"MLFLOW_TRACKING_URI={shown[:60]} is refused by MLflow ({reason}…). "
            "Fix: set http://HOST:PORT or sqlite:////PATH, or unset it to record below the artifacts"
        ) from error


def knows(client: Any, run_id: str) -> bool:
    """Whether a store has that run; one that was begun anew has not. Raises: what the store raises."""
    try:
        client.get_run(run_id)
    except Exception as error:
        if getattr(error, "error_code", "") != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True
