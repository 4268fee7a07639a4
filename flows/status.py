"""``r1flow status`` and ``r1flow cache``: what was run and what lies in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore
from flows.runs import list_runs

_COLOURS = {"done": "green", "failed": "red", "killed": "red", "interrupted": "yellow", "running": "blue"}


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Any:
    """Runs, latest last: state, time, what happened to their stages."""
    from rich.text import Text

    table = plain_table("runs", ("run", "pipeline", "state", "took", "stages", "overrides"))
    for run in runs:
        states = Counter(stage["state"] for stage in run["stages"].values())
        counts = ", ".join(f"{n} {state}" for state, n in states.items())
        state = Text(run["state"], style=_COLOURS.get(run["state"], ""))
        table.add_row(run["id"], run["pipeline"], state, _took(run), counts, Text(" ".join(run["overrides"])))
    return table


def artifacts_table(rows: Sequence[Mapping[str, Any]], drafts: Sequence[Mapping[str, Any]]) -> Any:
    """Finished artifacts, oldest first, then those begun."""
    from rich.text import Text

    table = plain_table("artifacts", ("stage", "key", "built", "took", "size", "where"))
    for row in rows:
        built = local_time(row["created"]) if row["created"] else "?"
        took = duration_text(row["wall_s"]) if "wall_s" in row else ""
        where = f"{row['path']}  {row['problem']}" if row["problem"] else str(row["path"])
        table.add_row(row["stage"], row["key"][:10], built, took, size_text(row["size"]), Text(where))
    for draft in drafts:
        step = f"stopped at step {draft['step']}" if draft["step"] is not None else "begun"
        table.add_row(draft["stage"], draft["key"][:10], step, "", "", Text(str(draft["path"])))
    return table


def show_status(artifacts: Path, console: Any, *, limit: int) -> None:
    """Print the latest runs and all artifacts."""
    runs, store = list_runs(artifacts), ArtifactStore(artifacts / "cache")
    if not runs:
        console.print(f"No runs in {artifacts}. Start one: r1flow run", markup=False, highlight=False)
    else:
        console.print(runs_table(runs[-limit:]))
        for name, url in (runs[-1].get("addresses") or {}).items():
            console.print(f"{name}: {url}", markup=False, highlight=False)
    rows, drafts = store.ls(), store.drafts()
    if rows or drafts:
        console.print()
        console.print(artifacts_table(rows, drafts))


def plain_table(title: str, columns: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("run", "stage", "key", "state", "took", "size"))
    return table


def _took(run: Mapping[str, Any]) -> str:
    if not run.get("ended"):
        return ""
    spent = datetime.fromisoformat(run["ended"]) - datetime.fromisoformat(run["started"])
    return duration_text(spent.total_seconds())


def duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def local_time(stamp: str) -> str:
    return datetime.fromisoformat(stamp).astimezone().strftime("%Y-%m-%d %H:%M")


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
