"""Samples that a stage has drawn already: kept chunk by chunk, so that a stage that was stopped draws only the rest.

<draft>/checkpoints/drawn/<label>/00000128-00000256.json
    sha256 of the rest, a newline, the rollouts of tasks 128 to 255 as JSON

Every rollout is a function of its address, so a chunk that is missing or damaged is drawn again to the same bytes,
whatever became of the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.artifacts import Damaged
from components.artifacts.disk import naming_errors, write_durably
from components.rollout.record import pack, unpack
from components.runtime import Out
from components.types import Rollout, Task

Groups = list[tuple[Rollout, ...]]


class Chunks:
    """What a stage has computed of its tasks, chunk by chunk, as JSON.

    Args:
        label: of the series; a stage may have several.
    """

    def __init__(self, out: Out, label: str, tasks: Sequence[Task]) -> None:
        self.out, self.tasks = out, tasks
        self.folder = out.checkpoints / "drawn" / label
        self.found = 0

    def get(self, start: int, end: int) -> Any:
        """What was kept of these tasks, the same on every rank; None if it has to be computed.

        A damaged chunk is named on the console.
        """
        path, peers = self._path(start, end), self.out.peers
        groups = None
        if peers.is_main and path.exists():
            try:
                groups = self._read(path, start, end)
            except (Damaged, OSError) as error:
                self.out.say(f"samples {start + 1} to {end} are damaged ({error}) and are drawn again")
        if peers.gather(groups is not None)[0]:
            self.found += end - start
            return self._read(path, start, end) if groups is None else groups
        return None

    def keep(self, start: int, end: int, groups: Any) -> None:
        """Make this durable. Every rank calls it; the main rank writes."""
        if self.out.peers.is_main:
            path = self._path(start, end)
            body = json.dumps(self._packed(groups))
            with naming_errors("make", path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, f"{_digest(body)}\n{body}")

    def _path(self, start: int, end: int) -> Path:
        return self.folder / f"{start:08d}-{end:08d}.json"

    def _read(self, path: Path, start: int, end: int) -> Any:
        with naming_errors("read", path):
            text = path.read_bytes().decode("utf-8", errors="replace")
        digest, _, body = text.partition("\n")
        if _digest(body) != digest:
            raise Damaged(path, "its content does not have the sha256 at its head")
        return self._unpacked(path, json.loads(body), start, end)

    def _packed(self, groups: Any) -> Any:
        return groups

    def _unpacked(self, path: Path, kept: Any, start: int, end: int) -> Any:
        return kept


class Drawn(Chunks):
    """The chunks of one series of samples.

    Args:
        n: samples of each task.
    """

    def __init__(self, out: Out, label: str, tasks: Sequence[Task], n: int) -> None:
        super().__init__(out, label, tasks)
        self.n = n

    def _packed(self, groups: Groups) -> Any:
        return [[pack(rollout) for rollout in group] for group in groups]

    def _unpacked(self, path: Path, kept: Any, start: int, end: int) -> Groups:
        groups = [tuple(unpack(row) for row in group) for group in kept]
        wanted = [(task.id,) * self.n for task in self.tasks[start:end]]
        if [tuple(rollout.task_id for rollout in group) for group in groups] != wanted:
            raise Damaged(path, "holds samples of other tasks")
        return groups


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
