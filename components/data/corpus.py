"""What every source gives, whatever it reads: one record, and the files it becomes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from components.artifacts import write_jsonl
from components.types import Example, Preference, Task

T = TypeVar("T")
EVALUATION_SPLITS = ("test", "dev")
TRAINING_SPLITS = ("profile", "fresh", "train")
SPLITS = EVALUATION_SPLITS + TRAINING_SPLITS  # earlier ones keep a prompt that turns up in two


class DataError(ValueError):
    """The user's data can't be used; the message says where, what was found and how to put it right."""


class Problems:
    """Collects what is wrong with a data set, so that all of it can be told at once."""

    SHOWN = 20

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, name: str, problem: str, fix: str) -> None:
        self.lines.append(f"{where} {name}: {problem}. Fix: {fix}")

    def of(self, rows: Iterable[T] | None) -> Iterator[T]:
        """The rows; what their reader finds wrong in the end is told with the rest, before it."""
        try:
            yield from rows or ()
        except DataError as error:
            self.lines[:0] = [line for line in str(error).splitlines() if not line.startswith("… and ")]

    def raise_if_any(self) -> None:
        """Raises: DataError listing the first 20 problems and how many more there are."""
        if self.lines:
            more = len(self.lines) - self.SHOWN
            tail = [f"… and {more} more"] if more > 0 else []
            raise DataError("\n".join(self.lines[: self.SHOWN] + tail))


def shown(value: Any) -> str:
    """A value as an error message quotes it: one line, not too long."""
    text = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "…"


@dataclass(frozen=True)
class Corpus:
    """Everything a pipeline learns from and is measured on.

    Attributes:
        tasks: by split: "train" (RL), "fresh" (rejection sampling only), "profile", "dev", "test".
        pretrain: lines of plain text in training order.
        cold_start: reasoning traces for the first SFT.
        general: non-reasoning examples for the second SFT.
        preferences: pairs that came with the data; the built-in ones are written by the `preferences` stage.
        templated: prompts share a template by construction, so that only whole prompts tell two of them apart.
        dropped: rows the source itself left out, by reason.
        notes: what the user should know about the data although it is usable, one line each.
    """

    tasks: Mapping[str, list[Task]]
    pretrain: list[str] = field(default_factory=list)
    cold_start: list[Example] = field(default_factory=list)
    general: list[Example] = field(default_factory=list)
    preferences: list[Preference] = field(default_factory=list)
    templated: bool = False
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Source(Protocol):
    """A data source: everything it needs is in its settings, every draw comes from ``seed``."""

    def load(self, seed: int) -> Corpus: ...


def write_corpus(corpus: Corpus, path: Path, report: Mapping[str, Any]) -> None:
    """Write ``tasks/<split>.jsonl``, ``pretrain.txt``, ``cold_start.jsonl``, ``general.jsonl``, ``preferences.jsonl``
    (only if the data brought pairs) and ``report.json`` into ``path``."""
    (path / "tasks").mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        write_rows(path / "tasks" / f"{split}.jsonl", corpus.tasks.get(split, []))
    write_rows(path / "cold_start.jsonl", corpus.cold_start)
    write_rows(path / "general.jsonl", corpus.general)
    if corpus.preferences:
        write_rows(path / "preferences.jsonl", corpus.preferences)
    (path / "pretrain.txt").write_text("".join(line + "\n" for line in corpus.pretrain), encoding="utf-8")
    (path / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_rows(path: Path, rows: Iterable[Task | Example | Preference]) -> None:
    """One JSON object per line, UTF-8."""
    write_jsonl(path, (row.to_json() for row in rows))


def read_tasks(path: Path) -> list[Task]:
    """Tasks of one ``tasks/<split>.jsonl``."""
    with path.open(encoding="utf-8") as file:
        return [Task.from_json(json.loads(line)) for line in file]
