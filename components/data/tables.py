"""The user's own rows as a corpus: columns mapped, every row checked, splits that don't move with the seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from components.data.corpus import Corpus, DataError, Problems
from components.data.readers import Part, Reader, Row, reader_of
from components.data.records import FIELDS, NAME, Reading, Record, Seen, nearest, read_record
from components.data.splits import First, bucket, contents_of, share
from components.types import Example, Preference

_TAG = re.compile(r"</?(?:think|answer)>")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Tasks, traces and pairs from rows; a row without an answer becomes a general task that only a model can judge,
    unless its ``meta`` has a ``check``, by which the environment's final state is judged (verifier "state").

    Attributes:
        reader: where the rows come from (``components.data.readers``).
        path: a file instead, read by the end of its name. test_path: its test rows; "auto" takes the file beside it
            with "test" for "train" in its name, if there is one.
        columns: column by field where its name isn't the field's own: ``{prompt: question, trace: solution}``. Fields:
            ``prompt`` (text) or ``messages`` (list of role and content, ending with the user) is required; ``answer``;
            ``trace`` (worked solution for the cold start, with or without ``<think>`` tags); ``chosen`` and
            ``rejected`` (a pair; text, or messages that end with the assistant's); ``family``, ``level`` (curriculum
            and evaluation cell); ``system``; ``id``; ``meta`` (an object: for agents the world, ``tools``, ``check``).
        verifier: how answers are compared: "exact" or "math".
        answer_after: the gold answer is what follows this marker in the answer column ("####"), and what stands before
            it is the trace unless a trace column is given.
        answer_boxed: likewise, the content of the last ``\\boxed{…}`` in it.
        drop_annotations: take GSM8K's calculator marks ``<<48/2=24>>`` out of traces.
        levels: "column", or "steps": the lines of the worked solution beyond the first, 7 at most.
        max_level: questions above it are not trained on; the evaluation keeps them.
        family: of rows without a family column.
        test_fraction, dev_fraction: share of the prompts held out, by a hash of the prompt: the same for every seed.
            ``test_fraction`` only applies without a test part.
        fresh_fraction: share of the training prompts kept for rejection sampling.
        profile_per_cell: training prompts per family and level set apart for profiling.
        max_train, max_test: keep this many rows at most to train on, and to measure on (dev and test, each): the first
            ones by hash. No more than these are in memory.
    """

    reader: Reader | None = None
    path: str | None = None
    test_path: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    verifier: Literal["exact", "math"] = "exact"
    answer_after: str | None = None
    answer_boxed: bool = False
    drop_annotations: bool = False
    levels: Literal["column", "steps"] = "column"
    max_level: int | None = None
    family: str = "default"
    test_fraction: float = 0.1
    dev_fraction: float = 0.05
    fresh_fraction: float = 0.3
    profile_per_cell: int = 8
    max_train: int | None = None
    max_test: int | None = None

    def __post_init__(self) -> None:
        if self.reader is None and self.path is None:
            raise DataError("path: no file is named. Fix: give path, or a reader")
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
        if self.path is not None and self.test_path not in (None, "auto") and _same(self.path, str(self.test_path)):
            raise DataError(
                f"test_path: the same file as path, all of it would be measured on and nothing trained on (got "
                f"{self.test_path}). Fix: test_path=null holds out a part of it, test_fraction=1 all of it"
            )
        for name, least in (("max_train", 1), ("max_test", 0), ("max_level", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise DataError(f"{name}: must be at least {least} (got {value}). Fix: null for no limit")
        for name in ("test_fraction", "dev_fraction", "fresh_fraction"):
            most = 1 if name == "test_fraction" else 0.999  # a set made to measure with is all test
            if not 0 <= getattr(self, name) <= most:
                raise DataError(f"{name}: a share from 0 up to 1 (got {getattr(self, name)}). Fix: 0.1, for example")

    def fingerprint(self) -> str:
        """Changes with the rows; belongs in the stage key."""
        return self._reader().fingerprint()

    def check(self) -> None:
        """Read and check every row. Raises: DataError listing all problems."""
        self._records([])

    def contents(self) -> dict[str, int]:
        """See `splits.contents_of`. Raises: as `check`."""
        return contents_of(self.load(0))

    def load(self, seed: int) -> Corpus:
        notes: list[str] = []
        records = self._records(notes)
        train = records["train"]
        shown_traces = [(r, _response(r)) for r in train]
        parts = share(
            [r.task for r in train], seed, fresh_fraction=self.fresh_fraction, profile_per_cell=self.profile_per_cell
        )
        return Corpus(
            {"test": [r.task for r in records["test"]], "dev": [r.task for r in records["dev"]], **parts},
            pretrain=[_plain(r) for r in train],
            cold_start=[_example(r, text) for r, text in shown_traces if text and r.task.kind == "reasoning"],
            general=[_example(r, text) for r, text in shown_traces if text and r.task.kind == "general"],
            preferences=[
                Preference(r.task.id, r.task.messages, _in_form(r.chosen), _in_form(r.rejected), r.task.family)
                for r in train
                if r.chosen is not None and r.rejected is not None
            ],
            notes=notes,
        )

    def _reader(self) -> Reader:
        if self.path is None:
            assert self.reader is not None
            return self.reader
        test_path, file = self.test_path, Path(self.path)
        if test_path == "auto":
            beside = file.with_name(file.name.replace("train", "test"))
            test_path = str(beside) if beside != file and beside.is_file() else None
        return reader_of(self.path, test_path)

    def _records(self, notes: list[str]) -> dict[str, list[Record]]:
        """Checked rows by split: test, dev, train."""
        problems, seen, extra, reader = Problems(), Seen(), set[str](), self._reader()
        kept = {"test": First(self.max_test), "dev": First(self.max_test), "train": First(self.max_train)}
        known = {self.columns.get(name, name) for name in FIELDS}
        reading = self._reading()
        tests = reader.rows("test", notes)
        parts: dict[Part, Iterator[Row] | None] = {"train": reader.rows("train", notes), "test": tests}
        for part, rows in parts.items():
            for where, row in problems.of(rows):
                extra |= row.keys() - known
                record = read_record(where, row, problems, reading)
                if record is not None and seen.admits(record, problems):
                    split = "test" if part == "test" else self._split(record, holds_out=tests is None)
                    if split != "train" or self.max_level is None or record.task.level <= self.max_level:
                        kept[split].add(record.task.prompt, record)
        problems.raise_if_any()
        everything = [record for found in kept.values() for record in found.items()]
        unanswered = sum(record.task.kind == "general" for record in everything)
        if 0 < unanswered < len(everything):
            some = f"{unanswered} of {len(everything)} rows"
            notes.append(f"{some} have no answer: they become general tasks, which only a model can judge")
        if extra:
            notes.append(f"columns not used: {', '.join(sorted(extra))}")
        return {split: found.items() for split, found in kept.items()}

    def _split(self, record: Record, *, holds_out: bool) -> str:
        prompt = record.task.prompt
        if holds_out and bucket("test", prompt) < self.test_fraction:
            return "test"
        return "dev" if bucket("dev", prompt) < self.dev_fraction else "train"

    def _reading(self) -> Reading:
        return Reading(
            columns=self.columns,
            verifier=self.verifier,
            family=self.family,
            answer_after=self.answer_after,
            answer_boxed=self.answer_boxed,
            drop_annotations=self.drop_annotations,
            levels=self.levels,
        )


def _same(path: str, other: str) -> bool:
    return Path(path).expanduser().resolve() == Path(other).expanduser().resolve()


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


def _in_form(text: str) -> str:
    """A response in the asked-for form: one without any tags had no thought, which is an empty one."""
    return text if "<think>" in text or "<answer>" in text else f"<think></think><answer>{text.strip()}</answer>"
