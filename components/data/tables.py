"""The user's own rows as a corpus: columns mapped, every row checked, splits that don't move with the seed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from components.data.corpus import Corpus, DataError, Problems
from components.data.readers import Part, Reader
from components.data.records import FIELDS, NAME, Record, Seen, nearest, read_record
from components.rng import derive
from components.types import Example, Preference, Task

_TAG = re.compile(r"</?(?:think|answer)>")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Tasks, traces and pairs from rows; a row without an answer becomes a general task that only a model can judge.

    Attributes:
        reader: where the rows come from (``components.data.readers``).
        columns: column by field where its name isn't the field's own: ``{prompt: question, trace: solution}``. Fields:
            ``prompt`` (text) or ``messages`` (list of role and content, ending with the user) is required; ``answer``;
            ``trace`` (worked solution for the cold start, with or without ``<think>`` tags); ``chosen`` and
            ``rejected`` (a pair); ``family``, ``level`` (curriculum and evaluation cell); ``system``; ``id``.
        verifier: how answers are compared: "exact" or "math".
        answer_after: the gold answer is what follows this marker in the answer column ("####"), and what stands before
            it is the trace unless a trace column is given.
        family: of rows without a family column.
        test_fraction, dev_fraction: share of the prompts held out, by a hash of the prompt: the same for every seed.
            ``test_fraction`` only applies without a test part.
        fresh_fraction: share of the training prompts kept for rejection sampling.
        profile_per_cell: training prompts per family and level set apart for profiling.
        max_train, max_test: keep this many rows of the part at most, the first ones by hash.
    """

    reader: Reader
    columns: Mapping[str, str] = field(default_factory=dict)
    verifier: Literal["exact", "math"] = "exact"
    answer_after: str | None = None
    family: str = "default"
    test_fraction: float = 0.1
    dev_fraction: float = 0.05
    fresh_fraction: float = 0.3
    profile_per_cell: int = 8
    max_train: int | None = None
    max_test: int | None = None

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in FIELDS:
                raise DataError(
                    f"columns.{name}: no such field{nearest(name, FIELDS)}. Fix: one of {', '.join(FIELDS)}"
                )
        if self.verifier not in ("exact", "math"):
            raise DataError(f"verifier: unknown (got {self.verifier!r}). Fix: exact or math")
        if not NAME.fullmatch(self.family):
            raise DataError(
                f"family: not a name (got {self.family!r}). Fix: letters, digits, dots, dashes, underscores"
            )
        for name in ("test_fraction", "dev_fraction", "fresh_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise DataError(f"{name}: a share from 0 up to 1 (got {getattr(self, name)}). Fix: 0.1, for example")

    def fingerprint(self) -> str:
        """Changes with the rows; belongs in the stage key."""
        return self.reader.fingerprint()

    def check(self) -> None:
        """Read and check every row. Raises: DataError listing all problems."""
        self._records([])

    def contents(self) -> dict[str, int]:
        """Rows of each file that `load` can lead to, tasks for RL by ``train/<family>`` and ``train/<kind>``, and the
        size of the plain text.

        Raises: as `check`.
        """
        corpus = self.load(0)
        counts = {f"tasks/{split}.jsonl": len(tasks) for split, tasks in corpus.tasks.items()}
        for name in ("cold_start", "general", "preferences"):
            counts[f"{name}.jsonl"] = len(getattr(corpus, name))
        groups = Counter(name for task in corpus.tasks["train"] for name in {task.family, task.kind})
        text = {
            "pretrain.txt": len(corpus.pretrain),
            "pretrain.txt/bytes": sum(len(t.encode()) + 1 for t in corpus.pretrain),
        }
        return {**counts, **text, **{f"train/{name}": n for name, n in groups.items()}}

    def load(self, seed: int) -> Corpus:
        notes: list[str] = []
        records = self._records(notes)
        train, test = records["train"], records["test"]
        if not test:
            cut = self.test_fraction
            test = [r for r in train if _bucket("test", r.task) < cut]
            train = [r for r in train if _bucket("test", r.task) >= cut]
        dev = [r for r in train if _bucket("dev", r.task) < self.dev_fraction]
        train = [r for r in train if _bucket("dev", r.task) >= self.dev_fraction]
        test, train = _first(test, self.max_test), _first(train, self.max_train)
        tasks = {"test": [r.task for r in test], "dev": [r.task for r in dev], **self._share(train, seed)}
        shown_traces = [(r, _response(r)) for r in train]
        return Corpus(
            tasks,
            pretrain=[_plain(r) for r in train],
            cold_start=[_example(r, text) for r, text in shown_traces if text and r.task.kind == "reasoning"],
            general=[_example(r, text) for r, text in shown_traces if text and r.task.kind == "general"],
            preferences=[
                Preference(r.task.id, r.task.messages, r.chosen, r.rejected, r.task.family)
                for r in train
                if r.chosen is not None and r.rejected is not None
            ],
            notes=notes,
        )

    def _share(self, train: list[Record], seed: int) -> dict[str, list[Task]]:
        """Profile, fresh and train, set apart by a hash that depends on the seed; unverifiable tasks stay in train."""
        tasks: dict[str, list[Task]] = {"profile": [], "fresh": [], "train": []}
        taken: dict[str, int] = defaultdict(int)
        room: dict[str, int] = defaultdict(int)
        for record in train:
            room[record.task.cell] += 1
        for record in sorted(train, key=lambda r: _bucket(f"share-{seed}", r.task)):
            task = record.task
            if task.kind == "reasoning" and taken[task.cell] < min(self.profile_per_cell, room[task.cell] // 4):
                taken[task.cell] += 1
                tasks["profile"].append(task)
            elif task.kind == "reasoning" and _bucket(f"fresh-{seed}", task) < self.fresh_fraction:
                tasks["fresh"].append(task)
            else:
                tasks["train"].append(task)
        return tasks

    def _records(self, notes: list[str]) -> dict[Part, list[Record]]:
        problems, seen = Problems(), Seen()
        records: dict[Part, list[Record]] = {"train": [], "test": []}
        known = {self.columns.get(name, name) for name in FIELDS}
        extra: set[str] = set()
        for part in ("train", "test"):
            for where, row in self.reader.rows(part, notes) or ():
                extra |= row.keys() - known
                record = read_record(
                    where,
                    row,
                    problems,
                    columns=self.columns,
                    verifier=self.verifier,
                    answer_after=self.answer_after,
                    family=self.family,
                )
                if record is not None and seen.admits(record, problems):
                    records[part].append(record)
        problems.raise_if_any()
        if extra:
            notes.append(f"columns not used: {', '.join(sorted(extra))}")
        return records


def _response(record: Record) -> str | None:
    """The trace in the response format: ``<think>…</think><answer>…</answer>``."""
    if record.trace is None:
        return None
    if "<answer>" in record.trace:
        return record.trace.strip()
    thought, _, rest = record.trace.replace("<think>", "").partition("</think>")
    answer = record.task.answer if record.task.answer is not None else rest.strip()
    return f"<think>{thought.strip()}</think><answer>{answer or thought.strip()}</answer>"


def _example(record: Record, response: str) -> Example:
    return Example(record.task.id, record.task.messages, response, record.task.family)


def _plain(record: Record) -> str:
    """One line of plain text for a base model trained from nothing."""
    parts = [record.task.prompt, _TAG.sub(" ", record.trace or ""), record.task.answer or ""]
    return " ".join(" ".join(parts).split())


def _bucket(purpose: str, task: Task) -> float:
    """A number in [0, 1) that belongs to the prompt."""
    return derive("split", purpose, " ".join(task.prompt.casefold().split())) / 2**63


def _first(records: list[Record], n: int | None) -> list[Record]:
    return records if n is None else sorted(records, key=lambda r: _bucket("first", r.task))[:n]
