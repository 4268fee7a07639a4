"""Environments as rows of a task set, and what of a folder is read back.

``tasks.jsonl`` is a data set like any other (``data=jsonl``): ``id``, ``prompt``, ``family``, ``level``, ``meta`` with
the world, the tools and the check, and the recorded solution as ``trace``. ``solutions.jsonl`` has the solutions call
by call, ``rejected.jsonl`` what was left out and why, ``report.json`` the counts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.artifacts import read_json, read_jsonl, write_json, write_jsonl
from components.environments.from_trajectories.transcript import WORLDS, Action, Reason
from components.environments.from_trajectories.validate import Environment
from components.environments.tools.formats import Call, Tags

FILES = ("tasks.jsonl", "solutions.jsonl", "rejected.jsonl", "report.json")
_TAGS = Tags()
_MAX_LEVEL = 7


@dataclass(frozen=True, slots=True)
class Refusal:
    """A transcript that did not become an environment."""

    id: str
    where: str
    reason: Reason
    detail: str


def task_row(environment: Environment, traces: float = 1.0) -> dict[str, Any]:
    """A row of ``tasks.jsonl``; its level is the number of steps that change something beyond the first.

    Args:
        traces: share of the tasks that have their solution as a trace, chosen by their ids.
    """
    name = hashlib.sha256(json.dumps([environment.instruction, environment.world], sort_keys=True).encode()).hexdigest()
    steps = len(environment.effective)
    meta = {**environment.world, "tools": list(environment.tools), "check": environment.check, "steps": steps}
    if environment.pass_rate is not None:
        meta["pass_rate"] = environment.pass_rate
    row = {
        "id": f"{environment.toolset}-{name[:12]}",
        "prompt": environment.instruction,
        "family": environment.toolset,
        "level": min(len(environment.effective) - 1, _MAX_LEVEL),
        "meta": meta,
    }
    return row if int(name[-8:], 16) >= traces * 2**32 else {**row, "trace": trace(environment)}


def trace(environment: Environment) -> str:
    """The solution in a tiny model's tags: thought, calls and results, then an answer."""
    begin, end = _TAGS.wrapper
    parts = [
        f"{_TAGS.write([Call(action.tool, action.arguments)])}{begin}{said}{end}"
        for action, said in zip(environment.actions, environment.said, strict=True)
    ]
    return f"<think> {' '.join(parts)}</think><answer>done</answer>"


def solution_row(identity: str, environment: Environment) -> dict[str, Any]:
    """A row of ``solutions.jsonl``."""
    calls = [{"name": action.tool, "arguments": dict(action.arguments)} for action in environment.actions]
    return {
        "id": identity,
        "transcript": environment.id,
        "where": _plain(environment.where),
        "calls": [{**call, "result": said} for call, said in zip(calls, environment.said, strict=True)],
        "changed": list(environment.changed),
        "broken_solutions_failed": environment.broken,
    }


def write_folder(
    folder: Path,
    environments: Sequence[Environment],
    refused: Sequence[Refusal],
    facts: Mapping[str, Any],
    *,
    traces: float = 1.0,
) -> dict[str, Any]:
    """Write the files; the report is returned. ``traces``: see `task_row`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").unlink(missing_ok=True)  # written last: a folder without one is not whole
    rows = [task_row(environment, traces) for environment in environments]
    report = {
        "transcripts": len(environments) + len(refused),
        "environments": len(environments),
        "families": dict(sorted(Counter(row["family"] for row in rows).items())),
        "rejected": dict(Counter(refusal.reason for refusal in refused).most_common()),
        **facts,
    }
    write_jsonl(folder / "tasks.jsonl", rows)
    write_jsonl(
        folder / "solutions.jsonl",
        [solution_row(row["id"], environment) for row, environment in zip(rows, environments, strict=True)],
    )
    write_jsonl(
        folder / "rejected.jsonl",
        [{"id": r.id, "where": _plain(r.where), "reason": r.reason, "detail": _plain(r.detail)} for r in refused],
    )
    write_json(folder / "report.json", report)
    return report


def _plain(text: str) -> str:
    """Without what UTF-8 cannot hold, of which a refused transcript may be full."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class Kept:
    """A task of a folder with its solution."""

    row: Mapping[str, Any]
    actions: tuple[Action, ...]

    @property
    def world(self) -> dict[str, Any]:
        """What its tools begin with."""
        return {name: self.row["meta"][name] for name in WORLDS.values() if name in self.row["meta"]}


def read_folder(folder: Path) -> tuple[list[Kept], list[Mapping[str, Any]], Mapping[str, Any]]:
    """(tasks with their solutions, rejected, report). Raises ValueError for a folder that holds none."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder}: not a folder of environments, it lacks {', '.join(missing)}. Fix: r1flow envs build"
        )
    solutions = {row["id"]: row["calls"] for row in read_jsonl(folder / "solutions.jsonl")}
    kept = []
    for row in read_jsonl(folder / "tasks.jsonl"):
        if row["id"] not in solutions:
            raise ValueError(f"{folder}/solutions.jsonl: no solution of {row['id']}. Fix: r1flow envs build once more")
        calls = [Action(call["name"], call["arguments"]) for call in solutions[row["id"]]]
        kept.append(Kept(row, tuple(calls)))
    return kept, list(read_jsonl(folder / "rejected.jsonl")), read_json(folder / "report.json")
