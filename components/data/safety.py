"""Safety prompts, such as XSTest: requests to refuse, and harmless ones that look like them and must be answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.data.cells import NAME, Cell, is_blank, nearest
from components.data.corpus import Corpus, DataError, Problems, shown
from components.data.general import task_id
from components.data.readers import Reader, reader_of
from components.data.splits import First, bucket, contents_of
from components.data.traces import respond
from components.rng import derive
from components.types import Example, Message, Task

REFUSAL = "I'm sorry, but I can't help with that."
_THOUGHT = "This request asks for something that could hurt people, so I should not help with it and say so politely."


@dataclass(frozen=True, kw_only=True)
class SafetyPrompts:
    """General tasks of two families: ``unsafe`` is right if the answer refuses, ``benign`` if it does not.

    Source: arXiv:2308.01263 (XSTest: 250 safe prompts, 200 unsafe contrasts).

    Attributes:
        path: CSV or JSON Lines with a prompt and a label per row.
        beside: a file in whose directory ``xstest_prompts.csv`` is looked for, where ``path`` is null.
        reader: rows from elsewhere (``components.data.readers``).
        columns: column by field (``prompt``, ``label``, ``id``) where its name isn't the field's own.
        unsafe, benign: labels of the two classes; other rows are left out and counted.
        test_fraction, dev_fraction: share of each class held out, by a hash of the prompt.
        refusals: what the second SFT is taught to say to unsafe prompts; none: nothing. Answers to benign ones have to
            come from elsewhere (a teacher, the model itself).
        max_train, max_test: so many of each class at most.
    """

    path: str | None = None
    beside: str | None = None
    reader: Reader | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    unsafe: Sequence[str] = ("unsafe", "harmful")
    benign: Sequence[str] = ("safe", "benign", "harmless")
    test_fraction: float = 0.5
    dev_fraction: float = 0.0
    refusals: Sequence[str] = (REFUSAL,)
    max_train: int | None = None
    max_test: int | None = None

    def fingerprint(self) -> str:
        """Changes with the rows; belongs in the stage key."""
        return self._reader().fingerprint()

    def check(self) -> None:
        """Read and check every row. Raises: DataError listing all problems."""
        self._tasks([])

    def contents(self) -> dict[str, int]:
        """See `splits.contents_of`."""
        return contents_of(self.load(0))

    def load(self, seed: int) -> Corpus:
        notes: list[str] = []
        tasks = self._tasks(notes)
        texts = list(self.refusals)
        general = [
            Example(task.id, task.messages, respond(_THOUGHT, texts[derive(seed, task.id) % len(texts)]), "refusal")
            for task in tasks["train"]
            if task.family == "unsafe" and texts
        ]
        return Corpus(tasks, general=general, notes=notes)

    def _reader(self) -> Reader:
        if self.path is None and self.reader is not None:
            return self.reader
        path = self.path
        if path is None:
            found = Path(self.beside or ".").expanduser().parent / "xstest_prompts.csv"
            if not found.is_file():
                raise DataError(
                    f"path: no safety prompts are named, and there is no {found}. Fix: give the CSV of XSTest or of "
                    "your own as path, or leave this source out"
                )
            path = str(found)
        return reader_of(path)

    def _tasks(self, notes: list[str]) -> dict[str, list[Task]]:
        problems, other, ids = Problems(), list[str](), set[str]()
        sizes = {"test": self.max_test, "dev": self.max_test, "train": self.max_train}
        kept = {(split, c): First[Task](n) for split, n in sizes.items() for c in ("unsafe", "benign")}
        for where, row in problems.of(self._reader().rows("train", notes)):
            task = self._task(where, row, problems, ids)
            if task is None:
                other.append(f"{where} (got {shown(row.get(self.columns.get('label', 'label')))})")
            else:
                kept[self._split(task.prompt), task.family].add(task.prompt, task)
        problems.raise_if_any()
        labels = f"{' or '.join(self.unsafe)} (to refuse), {' or '.join(self.benign)} (to answer)"
        if other:
            first = ", ".join(other[:3]) + (", …" if len(other) > 3 else "")
            rows = f"{len(other)} rows with"
            notes.append(f"{rows} another label than {labels} were left out: {first}")
        tasks = {split: [t for c in ("unsafe", "benign") for t in kept[split, c].items()] for split in sizes}
        if not (tasks["train"] or tasks["test"]):
            first = other[0] if other else "there are no rows"
            raise DataError(f"label: no row is labelled {labels}; {first}. Fix: set unsafe and benign to your labels")
        return tasks

    def _task(self, where: str, row: Mapping[str, Any], problems: Problems, ids: set[str]) -> Task | None:
        cell = Cell(where, row, self.columns, problems)
        prompt, label, name = cell.text("prompt"), cell.text("label"), cell.text("id", numbers=True)
        for column, value in (("prompt", prompt), ("label", label)):
            if value is None or is_blank(value):
                cell.problem(column, f"missing{nearest(column, row)}", f"set columns.{column}, or drop the row")
                return None
        prompt, label = str(prompt).strip(), str(label).strip().lower()
        family = "unsafe" if label in self.unsafe else "benign" if label in self.benign else None
        if family is None:
            return None
        identity = f"safety-{name}" if name and NAME.fullmatch(f"safety-{name}") else task_id(family, 0, prompt)
        if identity in ids:
            cell.problem("id", f"used twice (got {shown(name)})", "give each row its own id, or no id column")
        ids.add(identity)
        return Task(identity, (Message("user", prompt),), None, family, family, 0, "general")

    def _split(self, prompt: str) -> str:
        if bucket("test", prompt) < self.test_fraction:
            return "test"
        return "dev" if bucket("dev", prompt) < self.dev_fraction else "train"
