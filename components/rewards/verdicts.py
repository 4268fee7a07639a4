"""Answers that were paid for, kept in files: a stage that is resumed does not ask again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.artifacts import write_jsonl

FILE = "verdicts.jsonl"


class Verdicts:
    """Question → answer, in memory and in ``folder/<rank>.jsonl``; every rank reads what all ranks wrote before.

    Answers are flushed one by one. A line that a crash cut off is passed over.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._file: Path | None = None

    def keep_in(self, folder: Path, rank: int) -> None:
        """Read what is kept there and add to it from now on; the folder is made with the first answer."""
        self._file = folder / f"{rank}.jsonl"
        self._known |= read_verdicts(folder)

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def put(self, key: str, answer: str, **about: Any) -> None:
        """Keep an answer; ``about`` says what it was for, for people who read the file."""
        self._known[key] = answer
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                # On a line of its own, also behind one that a crash cut off.
                file.write(f"\n{json.dumps({'key': key, 'answer': answer, **about})}\n".encode())
                file.flush()
                os.fsync(file.fileno())


def read_verdicts(folder: Path) -> dict[str, str]:
    """Question → answer of all files in a folder."""
    return {key: row["answer"] for key, row in _rows(folder).items()}


def publish(source: Path, target: Path) -> None:
    """Write ``target/<term>/verdicts.jsonl`` from the folders of terms in ``source``: in order of the keys, so that
    it does not show who asked when."""
    for folder in sorted({file.parent for file in source.rglob("*.jsonl")}):
        rows = _rows(folder)
        write_jsonl(target / folder.relative_to(source) / FILE, [rows[key] for key in sorted(rows)])


def _rows(folder: Path) -> dict[str, Mapping[str, Any]]:
    rows: dict[str, Mapping[str, Any]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_bytes().split(b"\n"):
            try:
                row = json.loads(line)
            except ValueError:  # empty, or cut off by a crash
                continue
            if isinstance(row, dict) and isinstance(row.get("key"), str) and isinstance(row.get("answer"), str):
                rows.setdefault(row["key"], row)
    return rows
