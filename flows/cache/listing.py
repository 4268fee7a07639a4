"""``r1flow cache ls`` and ``verify``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from components.artifacts import ArtifactStore
from components.artifacts.trash import quarantined, size_of
from flows.cache.garbage import Rules, find_garbage
from flows.cache.pins import artifacts_of, read_pins
from flows.errors import BadInput
from flows.runs import list_runs
from flows.status import duration_text, local_time, plain_table, size_text


def show(options: argparse.Namespace, console: Any) -> int:
    """Print what there is."""
    from rich.text import Text  # a tenth of a second, which --help can do without

    store, runs = ArtifactStore(options.artifacts / "cache"), list_runs(options.artifacts)
    users = _users(runs)
    pins = {(pin.stage, pin.key) for pin in read_pins(options.artifacts)}
    only = options.names[0] if options.names else None
    rows = [row for row in store.ls() if only in (None, row["stage"])]
    table = plain_table("artifacts", ("stage", "key", "built", "age", "took", "size", "used by"))
    for row in rows:
        built = (local_time(row["created"]), _age_text(row["created"])) if row["created"] else ("?", "?")
        took = duration_text(row["wall_s"]) if "wall_s" in row else ""
        where = (row["stage"], row["key"])
        note = row["problem"] or _used_text(users.get(where, []))
        note += " · pinned" if where in pins else ""
        table.add_row(*where, *built, took, size_text(row["size"]), Text(note))
    for draft in store.drafts():
        if only in (None, draft["stage"]):
            step = f"stopped at step {draft['step']}" if draft["step"] is not None else "begun"
            table.add_row(draft["stage"], draft["key"], step, "", "", size_text(size_of(draft["path"])), "")
    console.print(table)
    aside = quarantined(store)
    parts = [f"{len(rows)} artifacts, {size_text(sum(row['size'] for row in rows))} in {store.root}"]
    try:
        free = find_garbage(options.artifacts, Rules())
        parts += [f"{size_text(free.size)} used by no run: r1flow cache gc"] if free.items else []
    except BadInput:  # what can't be read has been named; gc refuses until it is put right
        parts += ["what no run needs is not known"]
    parts += [f"{len(aside)} damaged ones set aside, {size_text(sum(map(size_of, aside)))}"] if aside else []
    console.print("; ".join(parts), markup=False, highlight=False, soft_wrap=True)
    return 0


def _users(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Ids of the runs that used each artifact, latest first."""
    users: dict[tuple[str, str], list[str]] = {}
    for run in reversed(runs):
        for name, stage in run["stages"].items():
            if stage.get("key"):
                users.setdefault((name, stage["key"]), []).append(run["id"])
    return users


def _used_text(runs: Sequence[str]) -> str:
    if not runs:
        return "no run"
    return ", ".join(runs[:2]) + (f" and {len(runs) - 2} more" if len(runs) > 2 else "")


def _age_text(created: str) -> str:
    seconds = max(0.0, time.time() - datetime.fromisoformat(created).timestamp())
    name, unit = next(((n, u) for n, u in (("d", 86_400), ("h", 3600), ("min", 60)) if seconds >= u), ("s", 1))
    return f"{seconds / unit:.0f} {name}"


def verify(options: argparse.Namespace, console: Any) -> int:
    """Check artifacts byte by byte; 1 if one is damaged, else 0."""
    only = None
    if options.names:
        only = [where for name in options.names for where in artifacts_of(options.artifacts, name, alone=True)]
    results = ArtifactStore(options.artifacts / "cache").verify(only)
    damaged = [row for row in results if row[2]]
    for stage, key, problem in damaged:
        console.print(f"✗ {stage}/{key}: {problem}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(results)} artifacts, {len(damaged)} damaged", highlight=False)
    return 1 if damaged else 0
