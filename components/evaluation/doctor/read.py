"""From what stages leave on disk to findings: metrics, rollouts and the answers of evaluations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from components.evaluation.doctor.checks.held_out import reward_without_held_out_accuracy
from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.text import alternatives
from components.evaluation.doctor.watch import examine
from components.evaluation.page.sources import read_parquet

FILES = 240  # rollout files read of a stage, spread evenly over its steps: enough for every trend, minutes saved
ANSWERS = "answers.parquet"
_LEFT_OUT = ("tokens", "action_mask")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class StageFiles:
    """A stage's directory, finished or not.

    Attributes:
        parents: input name → stage.
        settings: of the stage; read from the manifest where they are not given.
        failure: why it failed, if it did.
    """

    stage: str
    path: Path
    parents: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def answers(self) -> Path:
        return self.path / ANSWERS


class Rollouts:
    """Reads ``rollouts/`` of a stage, each file once; of a stage at work what is there so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: set[str] = set()

    def new(self) -> Iterator[Rows]:
        """Rows of the files not yet read, file by file in the order of their steps.

        The last file may be half written: it is left for the next time.

        Raises: OSError or ValueError for any other file that cannot be read.
        """
        files = [file for file in sorted(self.folder.glob("*.parquet")) if file.name not in self._read]
        for file in _spread(files, FILES):
            try:
                rows = read_rollouts(file)
            except (OSError, ValueError):
                if file == files[-1]:
                    return
                raise
            self._read.add(file.name)
            yield rows
        self._read |= {file.name for file in files}


def read_rollouts(file: Path) -> Rows:
    """Rollouts of one file without their tokens."""
    import pyarrow.parquet as pq  # heavy, and a stage without rollouts needs none

    return read_parquet(file, [name for name in pq.read_schema(file).names if name not in _LEFT_OUT])


def by_step(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Rollouts of one step after the other."""
    for _, part in groupby(rows, key=lambda row: row["step"]):
        yield list(part)


def read_metrics(path: Path) -> Rows:
    """Rows of ``logs/metrics.jsonl``; none if there is no such file. A killed writer may leave half a line."""
    file = path / "logs" / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def single_valued(tasks: Path | None) -> Callable[[str], bool]:
    """Whether a task is known to have one value as its answer, from ``tasks/train.jsonl`` of the data."""
    if tasks is None or not tasks.is_file():
        return lambda task: False
    known: set[str] = set()
    with tasks.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row.get("answer") and alternatives(str(row["answer"]), commas=True) == 1:
                known.add(str(row["id"]))
    return known.__contains__


def examine_stage(
    files: StageFiles,
    tasks: Path | None = None,
    rollouts: Iterable[Sequence[Mapping[str, Any]]] | None = None,
) -> tuple[Record, list[Finding]]:
    """What a stage's logs say, and the record they make.

    Args:
        tasks: ``tasks/train.jsonl`` of the data that it trained on.
        rollouts: those of one step each, where the caller has read them.
    """
    record = Record(
        files.stage, files.settings or _settings(files.path), machine=read_machine(files.path), failure=files.failure
    )
    found = Rollouts(files.path / "rollouts").new() if rollouts is None else rollouts
    return record, examine(record, read_metrics(files.path), found, single=single_valued(tasks))


def examine_run(
    stages: Sequence[StageFiles],
    rollouts: Mapping[str, Iterable[Sequence[Mapping[str, Any]]]] | None = None,
) -> list[Finding]:
    """Findings of all stages of a run, in their order, those that need evaluations too.

    Args:
        rollouts: by stage, where the caller has read them.
    """
    by_name = {files.stage: files for files in stages}
    answers = {files.parents.get("model"): files.answers for files in stages if files.answers.is_file()}
    findings: list[Finding] = []
    for files in stages:
        data = by_name.get(files.parents.get("data", ""))
        tasks = None if data is None else data.path / "tasks" / "train.jsonl"
        record, found = examine_stage(files, tasks, (rollouts or {}).get(files.stage))
        findings += found
        before, after = answers.get(files.parents.get("model")), answers.get(files.stage)
        if record.groups and before is not None and after is not None:
            findings += compare_held_out(record, before, after)
    said: set[tuple[str, str]] = set()  # what is wrong with the machine is so in every stage
    return [f for f in findings if (f.name, f.evidence) not in said and not said.add((f.name, f.evidence))]


def compare_held_out(record: Record, before: Path, after: Path) -> list[Finding]:
    """The finding that needs two evaluations, if it holds: of the model a stage started from, and of its own."""
    found = reward_without_held_out_accuracy(record, read_parquet(before), read_parquet(after))
    return [] if found is None else [found]


def _settings(path: Path) -> Mapping[str, Any]:
    manifest = path / "manifest.json"
    if not manifest.is_file():
        return {}
    return (json.loads(manifest.read_text(encoding="utf-8")).get("spec") or {}).get("settings") or {}


def read_machine(path: Path) -> Mapping[str, Any]:
    """``logs/workers.json``: processes, threads, cores and what each worker used; empty if there is none."""
    file = path / "logs" / "workers.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _spread(files: Sequence[Path], most: int) -> list[Path]:
    """At most so many of the files, evenly spaced, the first and the last among them."""
    if len(files) <= most:
        return list(files)
    return [files[round(i * (len(files) - 1) / (most - 1))] for i in range(most)]
