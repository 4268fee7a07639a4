"""Where the stages came from and what they cost: built or reused, wall and CPU time, memory, tokens sampled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from components.evaluation.page.sources import Node


@dataclass(frozen=True)
class Cost:
    """What building a stage took; None where nobody recorded it.

    Attributes:
        cpu_s: of all its processes.
        peak_mb: resident memory of the largest process.
        tokens: that the model generated.
    """

    wall_s: float | None = None
    cpu_s: float | None = None
    peak_mb: float | None = None
    tokens: int | None = None


def cost_of(node: Node) -> Cost:
    """Read what the stage's manifest, its workers' log and its Parquet files say."""
    log = node.path / "logs" / "workers.json"
    workers = json.loads(log.read_text(encoding="utf-8")).get("workers") or [] if log.exists() else []
    cpu = [worker["cpu_s"] for worker in workers if worker.get("cpu_s") is not None]
    memory = [worker["peak_rss_mb"] for worker in workers if worker.get("peak_rss_mb") is not None]
    return Cost(
        node.wall_s,
        sum(cpu) if cpu else None,
        max(memory) if memory else None,
        _tokens(node.path),
    )


def total(costs: Iterable[Cost], part: str) -> float | None:
    """Sum over the stages that recorded it; None if none did."""
    known = [value for cost in costs if (value := getattr(cost, part)) is not None]
    return sum(known) if known else None


def current_run(nodes: Mapping[str, Node]) -> str | None:
    """Id of the run that built what is shown last: that of the newest input which was not found built."""
    fresh = [node for node in nodes.values() if node.cached is False and node.manifest.get("run")]
    newest = max(fresh, key=lambda node: str(node.manifest.get("created", "")), default=None)
    return None if newest is None else str(newest.manifest["run"])


def reused_from(node: Node, run: str | None) -> str | None:
    """The earlier run whose artifact was reused; "" where only the fact is known; None if it was built now."""
    built_by = node.manifest.get("run")
    if built_by and (run is not None or node.cached):
        return None if built_by == run else str(built_by)
    return "" if node.cached else None


def _tokens(path: Path) -> int | None:
    """Tokens of all rollouts or answers of the stage."""
    files = sorted((path / "rollouts").glob("*.parquet"))
    files += [path / "answers.parquet"] if (path / "answers.parquet").exists() else []
    if not files:
        return None
    import pyarrow.parquet as pq  # heavy, and nobody but the report needs it here

    columns = (pq.read_table(file, columns=["length"])["length"].to_numpy() for file in files)
    return int(sum(column.sum() for column in columns))
