"""Programming tasks in the form of HumanEval: a function's head and docstring, and code that tests it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.data.cells import NAME, Cell, is_blank, nearest
from components.data.corpus import Corpus, DataError, Problems, shown
from components.data.general import task_id
from components.data.readers import Reader, reader_of
from components.data.splits import First, bucket, contents_of, share
from components.data.traces import respond
from components.types import Example, Message, Task

FIELDS = ("task_id", "prompt", "entry_point", "test", "tests", "canonical_solution")


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Tasks judged by running them (``verifier: code``, so ``reward=code``); ``Task.meta`` holds the tests.

    Rows have ``prompt`` and either ``test`` (code that defines ``check(candidate)``) with ``entry_point``, or ``tests``
    (a list of asserts, calls or inputs and outputs, as `components.rewards.code_tests.read_tests` takes them). The
    prompt is what the program is put behind, so that an answer may be the whole function or its body.
    Source: arXiv:2107.03374.

    Attributes:
        path: JSON Lines, ``.gz`` too. reader: rows from elsewhere.
        columns: column by field where its name isn't the field's own.
        instruction: put before the prompt.
        test_fraction, dev_fraction, fresh_fraction, profile_per_cell, max_train, max_test: as for a `Table`. HumanEval
            is a test set: with ``test_fraction: 1`` nothing of it is trained on.
    """

    path: str | None = None
    reader: Reader | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    instruction: str = "Complete this Python function.\n\n"
    family: str = "programs"
    test_fraction: float = 0.5
    dev_fraction: float = 0.05
    fresh_fraction: float = 0.3
    profile_per_cell: int = 8
    max_train: int | None = None
    max_test: int | None = None

    def __post_init__(self) -> None:
        if self.reader is None and self.path is None:
            raise DataError("path: no file is named. Fix: give path, or a reader")

    def fingerprint(self) -> str:
        """Changes with the rows; belongs in the stage key."""
        return self._reader().fingerprint()

    def check(self) -> None:
        """Read and check every row. Raises: DataError listing all problems."""
        self._read([])

    def contents(self) -> dict[str, int]:
        """See `splits.contents_of`."""
        return contents_of(self.load(0))

    def golds(self) -> list[tuple[str, Task, str]]:
        """(place, task, program) of every row that has a solution."""
        found = []
        for where, row in Problems().of(self._reader().rows("train", [])):
            cell = Cell(where, row, self.columns, Problems())
            task, program = self._task(cell, row), cell.text("canonical_solution")
            if task is not None and program:
                found.append((where, task, program))
        return found

    def load(self, seed: int) -> Corpus:
        notes: list[str] = []
        kept = {name: found.items() for name, found in self._read(notes).items()}
        tasks = {split: [task for task, _ in rows] for split, rows in kept.items()}
        parts = share(
            tasks.pop("train"), seed, fresh_fraction=self.fresh_fraction, profile_per_cell=self.profile_per_cell
        )
        shown = [
            Example(task.id, task.messages, respond("I write the body.", f"\n```python\n{code}\n```\n"), task.family)
            for task, code in kept["train"]
            if code
        ]
        return Corpus({**tasks, **parts}, cold_start=shown, notes=notes)

    def _reader(self) -> Reader:
        return reader_of(self.path) if self.path is not None else self.reader  # type: ignore[return-value]

    def _read(self, notes: list[str]) -> dict[str, First[tuple[Task, str | None]]]:
        problems, names = Problems(), set[str]()
        sizes = {"test": self.max_test, "dev": self.max_test, "train": self.max_train}
        kept = {split: First[tuple[Task, str | None]](n) for split, n in sizes.items()}
        for where, row in problems.of(self._reader().rows("train", notes)):
            cell = Cell(where, row, self.columns, problems)
            task = self._task(cell, row)
            if task is None:
                continue
            if task.id in names:
                cell.problem("task_id", f"used twice (got {shown(task.id)})", "give each row its own")
            names.add(task.id)
            test = bucket("test", task.prompt) < self.test_fraction
            split = "test" if test else "dev" if bucket("dev", task.prompt) < self.dev_fraction else "train"
            kept[split].add(task.prompt, (task, cell.text("canonical_solution")))
        problems.raise_if_any()
        return kept

    def _task(self, cell: Cell, row: Mapping[str, Any]) -> Task | None:
        prompt, test, entry = cell.text("prompt"), cell.text("test"), cell.text("entry_point")
        tests = cell.get("tests")
        if prompt is None or is_blank(prompt):
            cell.problem("prompt", f"missing{nearest('prompt', row)}", "set columns.prompt, or drop the row")
            return None
        if not (test or tests):
            fix = "give check(candidate) as test, or a list of asserts as tests"
            cell.problem("test", "no tests, so that any program would pass", fix)
            return None
        if test and not entry:
            cell.problem("entry_point", "missing beside test", "name the function under test")
            return None
        if test and (problem := _no_check(test)):
            cell.problem("test", *problem)
            return None
        given = (cell.text("task_id", numbers=True) or "").replace("/", "-")
        name = given if NAME.fullmatch(given) else task_id(self.family, 0, prompt)
        meta: dict[str, Any] = {"prelude": prompt}
        meta |= {"check": test, "entry_point": entry} if test else {"tests": list(tests), "entry_point": entry}
        return Task(
            name, (Message("user", self.instruction + prompt),), None, "code", self.family, 0, "reasoning", meta
        )


def _no_check(code: str) -> tuple[str, str] | None:
    """Why code is no test of a candidate, and the remedy."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python will no longer take one day
            tree = ast.parse(code)
    except SyntaxError as error:
        line = shown((error.text or "").strip())
        return f"is no Python: {error.msg} in its line {error.lineno} (got {line})", "repair it"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"is no Python that can be read ({error or type(error).__name__})", "repair it"
    check = next((s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == "check"), None)
    if check is None:
        return f"defines no check(candidate) (got {shown(code)})", "define it: its asserts call the candidate"
    if all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in check.body
    ):
        return "its check asserts nothing, so that any program would pass", "give it asserts, or drop the row"
    return None
