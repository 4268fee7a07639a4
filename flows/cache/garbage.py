"""Which artifacts nothing needs any more: what can't be reached from a run that counts, or from a pin.

A run in progress needs what it has used so far, and anything of the stages it has not come to: which of these it will
reuse only shows when it gets there. So it is safe to collect while runs are at work. A run that is about to start waits
until the collection is over (`flows.runs.held`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore
from components.artifacts.directory import remove_tree
from components.artifacts.transfer import INCOMING
from components.artifacts.trash import (
    TRASH,
    discard,
    discard_quarantined,
    empty_trash,
    quarantined,
    size_of,
)
from flows.cache.pins import read_pins
from flows.errors import BadInput, Problem
from flows.runs import held, list_runs

DAY_S = 86_400.0
_SETTLED = ("reused", "done")
_Where = tuple[str, str]


@dataclass(frozen=True)
class Rules:
    """What counts as needed.

    Attributes:
        keep_last: only the last so many runs count; None: all of them do.
        older_than_s: runs, and artifacts, younger than this count as well.
        partial: also drafts that no process works on and that were not touched for ``older_than_s``, or a day.
        quarantine: also damaged artifacts that were set aside.
    """

    keep_last: int | None = None
    older_than_s: float | None = None
    partial: bool = False
    quarantine: bool = False


@dataclass(frozen=True)
class Item:
    """One thing to remove; ``kind`` is artifact, draft, quarantined or leftover."""

    kind: str
    stage: str
    key: str
    path: Path
    size: int
    why: str


@dataclass
class Collection:
    """What is to be removed, and of what is kept: how much, and how many artifacts for which reason."""

    items: list[Item] = field(default_factory=list)
    kept: int = 0
    kept_bytes: int = 0
    in_use: list[Item] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)


def find_garbage(artifacts: Path, rules: Rules) -> Collection:
    """What `collect` would remove. Raises: BadInput if a run's record or the pins can't be read."""
    store, now = ArtifactStore(artifacts / "cache"), time.time()
    runs = _readable_runs(artifacts)
    counted = _counted(runs, rules, artifacts, now)
    rows = {(row["stage"], row["key"]): row for row in store.ls()}
    open_stages = {stage for run in runs if run["state"] == "running" for stage in _unsettled(run)}
    roots = {where for run in counted for where in _used(run)}
    roots |= {(pin.stage, pin.key) for pin in read_pins(artifacts) if not pin.run}
    roots |= {where for where in rows if where[0] in open_stages}
    needed = _closure(roots, rows)
    found = Collection()
    for where, row in rows.items():
        if where in needed or _is_young(_age(row, now), rules.older_than_s):
            found.kept, found.kept_bytes = found.kept + 1, found.kept_bytes + row["size"]
        else:
            used = any(where in _used(run) for run in runs)
            why = "used by older runs only" if used else "used by no run"
            found.items.append(Item("artifact", *where, row["path"], size_of(row["path"]), why))
    if rules.partial:
        found.items += _drafts(store, open_stages, rules, now)
    if rules.quarantine:
        found.items += [
            Item("quarantined", path.parent.name, path.name, path, size_of(path), "damaged, set aside")
            for path in quarantined(store)
            if not _is_young(now - path.stat().st_mtime, rules.older_than_s)
        ]
    found.items += _leftovers(store, now)
    return found


def collect(artifacts: Path, rules: Rules) -> Collection:
    """Remove what nothing needs; what a process works on at this moment is left and listed as in use."""
    store = ArtifactStore(artifacts / "cache")
    with held(artifacts, exclusive=True):
        found = find_garbage(artifacts, rules)
        for item in found.items:
            if item.kind == "quarantined":
                discard_quarantined(store, item.path)
            elif item.kind == "leftover":
                remove_tree(item.path)
            elif not discard(store, item.stage, item.key, draft=item.kind == "draft"):
                found.in_use.append(item)
    found.items = [item for item in found.items if item not in found.in_use]
    empty_trash(store)
    return found


def _readable_runs(artifacts: Path) -> list[dict[str, Any]]:
    """All runs; a record that can't be read might need anything, so that nothing may be removed."""
    runs = list_runs(artifacts)
    known = {run["id"] for run in runs}
    unreadable = [file for file in (artifacts / "runs").glob("*/run.json") if file.parent.name not in known]
    if unreadable:
        fix = "correct it, or remove that directory if its artifacts are not needed"
        raise BadInput(Problem(str(unreadable[0]), "", "can't be read, so what this run needs is not known", fix=fix))
    return runs


def _counted(runs: Sequence[dict[str, Any]], rules: Rules, artifacts: Path, now: float) -> list[dict[str, Any]]:
    pinned = {pin.run for pin in read_pins(artifacts)}
    last = {run["id"] for run in runs[len(runs) - min(rules.keep_last or 0, len(runs)) :]}
    everything = rules.keep_last is None and rules.older_than_s is None
    return [
        run
        for run in runs
        if everything
        or run["state"] == "running"
        or run["id"] in pinned | last
        or _is_young(now - datetime.fromisoformat(run["started"]).timestamp(), rules.older_than_s)
    ]


def _used(run: Mapping[str, Any]) -> set[_Where]:
    return {(name, stage["key"]) for name, stage in run["stages"].items() if stage.get("key")}


def _unsettled(run: Mapping[str, Any]) -> list[str]:
    return [name for name, stage in run["stages"].items() if stage["state"] not in _SETTLED]


def _closure(roots: set[_Where], rows: Mapping[_Where, Mapping[str, Any]]) -> set[_Where]:
    """With everything they were built from."""
    needed, pending = set(), list(roots)
    while pending:
        if (where := pending.pop()) in needed:
            continue
        needed.add(where)
        parents = rows.get(where, {}).get("parents", {})
        pending += [(parent["stage"], parent["key"]) for parent in parents.values()]
    return needed


def _age(row: Mapping[str, Any], now: float) -> float:
    """Seconds since it was built; by the clock of the file system where the manifest doesn't say."""
    built = datetime.fromisoformat(row["created"]).timestamp() if row["created"] else row["path"].stat().st_mtime
    return now - built


def _is_young(age_s: float, limit_s: float | None) -> bool:
    return limit_s is not None and age_s < limit_s


def _drafts(store: ArtifactStore, open_stages: set[str], rules: Rules, now: float) -> list[Item]:
    limit = DAY_S if rules.older_than_s is None else rules.older_than_s
    found = []
    for draft in store.drafts():
        path = draft["path"]
        touched = max((entry.lstat().st_mtime for entry in (path, *path.rglob("*"))), default=0.0)
        if draft["stage"] not in open_stages and now - touched >= limit:
            why = "begun" if draft["step"] is None else f"stopped at step {draft['step']}"
            found.append(Item("draft", draft["stage"], draft["key"], path, size_of(path), why))
    return found


def _leftovers(store: ArtifactStore, now: float) -> list[Item]:
    """What a collection or an import that was killed left behind."""
    folders = [store.root / TRASH, store.root / INCOMING]
    return [
        Item("leftover", "", path.name, path, size_of(path), "of a collection or an import that was cut off")
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if folder.name == TRASH or now - path.stat().st_mtime > DAY_S
    ]
