"""Earlier artifacts of a stage: what a run can know of a stage before it is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.artifacts import ArtifactStore
from flows.run_only import key_settings
from flows.stage import StageSpec

Row = Mapping[str, Any]


def alike(spec: StageSpec, store: ArtifactStore) -> list[Row]:
    """Manifests of this stage's artifacts (see `ArtifactStore.ls`), the one most like what the stage is now first.

    Like are: the same settings before other ones, the same seed before another, the newest before older ones. An
    artifact of another target is none of this stage's.
    """
    settings = key_settings(spec.settings, spec.target)
    rows = [
        row for row in store.ls(spec.name) if not row["problem"] and row.get("spec", {}).get("target") == spec.target
    ]

    def likeness(row: Row) -> tuple[int, bool, str]:
        made_of = row["spec"]
        return -distance(made_of.get("settings") or {}, settings), made_of.get("seed") == spec.seed, row["created"]

    return sorted(rows, key=likeness, reverse=True)


def distance(old: Any, new: Any) -> int:
    """Leaves that differ between two nested settings."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return sum(distance(old.get(key), new.get(key)) for key in old.keys() | new.keys())
    return int(old != new)
