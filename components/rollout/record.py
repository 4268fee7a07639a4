"""Rollouts on disk: one Parquet file per stretch of steps, read by the report, the doctor and later stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from components.artifacts.disk import naming_errors
from components.types import Group, Rollout

_FIELDS = tuple(field.name for field in fields(Rollout))


def rows(groups: Iterable[Group], step: int) -> list[dict[str, Any]]:
    """One record per rollout: prompt, response, tokens, every reward term, length, finish, policy version."""
    return [
        {
            "step": step,
            "task_id": group.task.id,
            "family": group.task.family,
            "level": group.task.level,
            "kind": group.task.kind,
            "prompt": group.task.prompt,
            "response": rollout.response,
            "tokens": list(rollout.tokens),
            "action_mask": list(rollout.action_mask),
            "total": score.total,
            "outcome": score.outcome,
            "reason": score.reason,
            "terms": dict(score.terms),
            "length": len(rollout.tokens),
            "finish": rollout.finish,
            "policy_version": rollout.policy_version,
        }
        for group in groups
        for rollout, score in zip(group.rollouts, group.scores, strict=True)
    ]


def pack(rollout: Rollout) -> list[Any]:
    """A rollout as a JSON array, exactly: `unpack` gives an equal one."""
    return [getattr(rollout, name) for name in _FIELDS]


def unpack(row: Sequence[Any]) -> Rollout:
    """The rollout that `pack` was given. Raises TypeError or ValueError for anything else."""
    values: dict[str, Any] = dict(zip(_FIELDS, row, strict=True))
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return Rollout(**values)


def write_rows(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as Parquet; reward terms become columns ``term.<name>`` (null where a term did not apply).

    Raises:
        OSError: the disk is full or not writable; names the path.
    """
    import pyarrow as pa  # heavy, and only the process that writes needs it
    import pyarrow.parquet as pq

    names = sorted({name for record in records for name in record.get("terms", {})})
    flat = [
        {
            **{k: v for k, v in record.items() if k != "terms"},
            **{f"term.{name}": record["terms"].get(name) for name in names},
        }
        if "terms" in record
        else dict(record)
        for record in records
    ]
    table = pa.Table.from_pylist(flat)
    with naming_errors("write", path, lambda: table.nbytes):
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd")


def read_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Records of a Parquet file."""
    import pyarrow.parquet as pq  # heavy, see above

    return pq.read_table(path, columns=None if columns is None else list(columns)).to_pylist()
