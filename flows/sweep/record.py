"""``artifacts/sweeps/<id>/sweep.json``: what a sweep consists of and how far each of its runs is.

The same command finds its sweep again by a digest of what was asked for, and goes on with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem
from flows.runs import new_directory

FILE = "sweep.json"


def digest_of(asked: Any) -> str:
    """20 hexadecimal digits of what was asked for; nothing of it can be read from them."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:20]


class SweepRecord:
    """The record of a sweep that is under way; every change is written to a temporary file and renamed.

    Attributes:
        runs: one entry a run: ``overrides`` (its label), ``arm`` and ``seed`` (the two parts of it), ``state``
            (waiting, running, done, failed, interrupted), started, ended, exit, and ``trial`` in a search.
    """

    def __init__(self, directory: Path, digest: str, runs: list[dict[str, Any]], **more: Any) -> None:
        self.directory, self.digest, self.runs, self.more = directory, digest, runs, more

    @property
    def id(self) -> str:
        return self.directory.name

    def add(self, names: Mapping[str, str], **more: Any) -> int:
        """A new run; its number."""
        self.runs.append({**names, "state": "waiting", **more})
        self.write()
        return len(self.runs) - 1

    def update(self, number: int, **changes: Any) -> None:
        self.runs[number].update(changes)
        self.write()

    def count(self, *states: str) -> int:
        return sum(run["state"] in states for run in self.runs)

    def write(self) -> None:
        content = {"id": self.id, "digest": self.digest, **self.more, "runs": self.runs}
        temporary = self.directory / f"{FILE}.tmp"
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.directory / FILE)


@contextlib.contextmanager
def opened(artifacts: Path, digest: str, **more: Any) -> Iterator[tuple[SweepRecord, bool]]:
    """The record of the sweep with this digest, and whether it was there already; a new one if none is.

    Raises: BadInput if another process is at work on it.
    """
    folder = artifacts / "sweeps"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as all_sweeps:
        fcntl.flock(all_sweeps, fcntl.LOCK_EX)  # two equal commands at once find one sweep
        found = find(artifacts, digest)
        directory = found[0] if found else new_directory(folder)
        record = SweepRecord(directory, digest, found[1]["runs"] if found else [], **more)
        lock = (directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            fix = "wait for it, or end it; then this command goes on where it stopped"
            raise BadInput(Problem("sweep", record.id, "is at work in another process", fix=fix)) from None
        record.write()
    with lock:  # freed by the kernel when this process dies
        for run in record.runs:
            if run["state"] == "running":  # its sweep was killed
                run["state"] = "interrupted"
        yield record, found is not None


def find(artifacts: Path, digest: str) -> tuple[Path, Mapping[str, Any]] | None:
    """Directory and content of the latest sweep with this digest."""
    for file in sorted((artifacts / "sweeps").glob(f"*/{FILE}"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.get("digest") == digest and isinstance(content.get("runs"), list):
                return file.parent, content
    return None


def read_sweep(artifacts: Path, sweep: str) -> dict[str, Any]:
    """What is recorded of a sweep."""
    return json.loads((artifacts / "sweeps" / sweep / FILE).read_text(encoding="utf-8"))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
