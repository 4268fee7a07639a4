"""What a stage is given besides its settings: inputs, a place to write, its peers, and a line to the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The stage was asked to stop, wrote a checkpoint and returned early."""


@dataclass(frozen=True)
class StageArtifact:
    """A finished stage: an immutable directory and what its manifest says of it.

    Attributes:
        digest: content digest of its files (logs excluded); children's keys are made of it.
        cached: True if an earlier run built it.
    """

    stage: str
    key: str
    path: Path
    digest: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    cached: bool = False


Inputs = Mapping[str, StageArtifact]


@dataclass(frozen=True)
class Peers:
    """The processes that run one stage together (data parallel). With one process every call is local."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def shard(self, items: Sequence[T]) -> list[T]:
        """This rank's items: every world_size-th, so that neighbours in length and level are spread evenly."""
        return list(items[self.rank :: self.world_size])

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist  # heavy, and only needed with more than one process

        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def unshard(self, mine: Sequence[T]) -> list[T]:
        """Inverse of `shard`: all ranks' items in the original order, on every rank."""
        parts = self.gather(list(mine))
        merged: list[T] = []
        for i in range(max(map(len, parts), default=0)):
            merged.extend(part[i] for part in parts if i < len(part))
        return merged

    def sum(self, value: float) -> float:
        """Sum of a number over ranks."""
        return float(sum(self.gather(float(value))))

    def all_reduce(self, tensor: Any) -> None:
        """Sum a tensor over ranks, in place."""
        if self.world_size > 1:
            import torch.distributed as dist  # heavy, see above

            dist.all_reduce(tensor)

    def barrier(self) -> None:
        self.gather(0)


@dataclass
class Out:
    """Where a stage writes and whom it tells.

    Attributes:
        path: the draft directory; whatever lies here when the stage returns becomes the artifact.
        name: stage name, the second part of every random address.
        seed: run seed, the first part.
        emit: takes one JSON-able event for the driver (console, tracker).
        stop_requested: True once this process was asked to stop.
    """

    path: Path
    name: str
    seed: int
    peers: Peers = field(default_factory=Peers)
    emit: Callable[[dict[str, Any]], None] = lambda event: None
    stop_requested: Callable[[], bool] = lambda: False

    @property
    def checkpoints(self) -> Path:
        """Step checkpoints; removed when the artifact is committed."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Files that are kept but are not part of the artifact's content digest (timings)."""
        return self.path / "logs"

    def should_stop(self) -> bool:
        """Whether any rank was asked to stop; every rank gets the same answer. Call once per step on every rank."""
        return any(self.peers.gather(self.stop_requested()))

    def raise_if_stopping(self) -> None:
        """Raise `Interrupted` on every rank if any rank was asked to stop. Call where all that matters is saved."""
        if self.should_stop():
            raise Interrupted(f"{self.name}: stopped on request")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of one step in ``logs/metrics.jsonl`` (the truth) and pass them on. Main rank only.

        Each step stands there once: going on from a checkpoint cuts the file back to it.
        """
        if not self.peers.is_main:
            return
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
        self.emit({"event": "metrics", "stage": self.name, "step": step, "values": dict(metrics)})

    def replay(self) -> None:
        """Tell the trackers what earlier runs of this stage logged: the curves of the run that goes on are whole."""
        file = self.logs / "metrics.jsonl"
        if not self.peers.is_main or not file.exists():
            return
        for line in file.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            self.emit({"event": "metrics", "stage": self.name, "step": values.pop("step"), "values": values})

    def progress(self, done: int, total: int, **shown: float | str) -> None:
        """Tell the console how far the stage is."""
        if self.peers.is_main:
            self.emit({"event": "progress", "stage": self.name, "done": done, "total": total, "shown": shown})

    def say(self, text: str) -> None:
        """One line for the console (a warning, a count)."""
        if self.peers.is_main:
            self.emit({"event": "say", "stage": self.name, "text": text})
