"""Public evaluation sets from one directory, by the names of their files: nothing of them is trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from components.data.corpus import Corpus, DataError
from components.data.mix import Mixture, Part
from components.data.programs import Programs
from components.data.safety import SafetyPrompts
from components.data.splits import contents_of
from components.data.tables import Table

_table = partial(Table, test_fraction=1.0, dev_fraction=0.0, verifier="math")
_SETS: Mapping[str, tuple[Sequence[str], Callable[..., Any]]] = {
    "gsm8k": (
        ("gsm8k_test.jsonl", "test.jsonl"),
        partial(_table, columns={"prompt": "question"}, answer_after="####", levels="steps", family="gsm8k"),
    ),
    "math": (
        ("math_test.jsonl", "MATH_test.jsonl"),
        partial(_table, columns={"prompt": "problem", "answer": "solution", "family": "type"}, answer_boxed=True),
    ),
    "humaneval": (
        ("HumanEval.jsonl.gz", "HumanEval.jsonl"),
        partial(Programs, test_fraction=1.0, dev_fraction=0.0, family="humaneval"),
    ),
    "xstest": (("xstest_prompts.csv",), partial(SafetyPrompts, test_fraction=1.0)),
}


@dataclass(frozen=True, kw_only=True)
class PublicSets:
    """GSM8K (arXiv:2110.14168), MATH (2103.03874), HumanEval (2107.03374) and XSTest (2308.01263) in their own forms.

    Attributes:
        path: directory with ``gsm8k_test.jsonl``, ``math_test.jsonl`` (problem, solution, type, level),
            ``HumanEval.jsonl.gz``, ``xstest_prompts.csv``.
        sets: which of gsm8k, math, humaneval, xstest; None takes those that are there and says so.
        max_test: so many prompts of each at most, the first ones by a hash of the prompt.
    """

    path: str
    sets: Sequence[str] | None = None
    max_test: int | None = None

    def __post_init__(self) -> None:
        for name in self.sets or ():
            if name not in _SETS:
                raise DataError(f"sets: there is no {name!r}. Fix: some of {', '.join(_SETS)}")

    def fingerprint(self) -> str:
        """Changes with the rows; belongs in the stage key."""
        return hashlib.sha256(f"{sorted(self._files())}:{self._mixture().fingerprint()}".encode()).hexdigest()

    def check(self) -> None:
        """Read and check every row. Raises: DataError."""
        self._mixture().check()

    def contents(self) -> dict[str, int]:
        """See `splits.contents_of`."""
        return contents_of(self.load(0))

    def load(self, seed: int) -> Corpus:
        corpus = self._mixture().load(seed)
        there = self._files()
        lacking = [name for name in _SETS if name not in there and self.sets is None]
        notes = [f"measured on: {', '.join(f'{name} ({file.name})' for name, file in there.items())}"]
        notes += [f"not in {self.path}: {', '.join(lacking)}"] if lacking else []
        return Corpus(corpus.tasks, notes=notes)

    def _mixture(self) -> Mixture:
        return Mixture(
            parts={
                name: Part(source=_SETS[name][1](path=str(file), max_test=self.max_test))
                for name, file in self._files().items()
            }
        )

    def _files(self) -> dict[str, Path]:
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise DataError(f"path: {self.path} is no directory (working directory {Path.cwd()}). Fix: give one")
        found = {}
        for name in _SETS if self.sets is None else self.sets:
            names = _SETS[name][0]
            file = next((folder / option for option in names if (folder / option).is_file()), None)
            if file is not None:
                found[name] = file
            elif self.sets is not None:
                raise DataError(f"sets: {name} is not in {self.path}. Fix: put it there as {names[0]}, or leave it out")
        if not found:
            known = ", ".join(names[0] for names, _ in _SETS.values())
            raise DataError(f"path: {self.path} holds none of the public sets. Fix: put some of {known} there")
        return found
