"""Rows of the user's data with the place each came from: text files by ourselves, the rest through ``datasets``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from components.data.corpus import DataError, Problems, shown
from components.data.files import DAMAGED, damage, digest_of, existing, opened
from components.data.objects import read_object, repeated

Part = Literal["train", "test"]
Row = tuple[str, dict[str, Any]]  # ("questions.jsonl:17", {"prompt": …})


class Reader(Protocol):
    """Where rows come from."""

    def rows(self, part: Part, notes: list[str]) -> Iterator[Row] | None:
        """Rows of a part, or None if the data has no test part of its own; adds to ``notes`` what is worth saying."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the rows do; belongs in the stage key."""
        ...


@dataclass(frozen=True, kw_only=True)
class Jsonl:
    """JSON Lines in UTF-8, one object per line, read as it goes; ``.gz``, a byte-order mark and CRLF are accepted.

    Attributes:
        path: training rows. test_path: test rows; None holds out part of ``path``.
        max_line_mb: a longer line is refused before it is read.
    """

    path: str
    test_path: str | None = None
    max_line_mb: float = 10

    def rows(self, part: Part, notes: list[str]) -> Iterator[Row] | None:
        path = self.path if part == "train" else self.test_path
        return None if path is None else self._read(existing(path), notes)

    def fingerprint(self) -> str:
        return digest_of(self.path, self.test_path)

    def _read(self, file: Path, notes: list[str]) -> Iterator[Row]:
        problems, found, number = Problems(), False, 0
        with opened(file) as lines:
            while True:
                number += 1
                where = f"{file}:{number}"
                try:
                    line = self._line(where, lines, problems)
                except DAMAGED as error:
                    problems.add(where, "file", *damage(error))
                    break
                if not line:
                    break
                if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                    notes.append(f"{file}: starts with a byte-order mark (ignored)")
                if not found and line.strip() == b"[":
                    problems.add(
                        where, "file", 'holds one JSON array (got "[")', "one object per line, no array around them"
                    )
                    break
                if line.strip() and (row := read_object(where, line, problems)) is not None:
                    found = True
                    yield where, row
        if not found and not problems.lines:
            problems.add(f"{file}:1", "file", "is empty", "one JSON object per line")
        problems.raise_if_any()

    def _line(self, where: str, lines: IO[bytes], problems: Problems) -> bytes:
        """The next line; empty at the end, and for one that is too long. Raises: `DAMAGED`."""
        limit = int(self.max_line_mb * 2**20)
        line = lines.readline(limit + 1)
        if len(line) <= limit:
            return line
        problems.add(where, "line", f"longer than {self.max_line_mb:g} MB", "split it or raise max_line_mb")
        return b""


@dataclass(frozen=True, kw_only=True)
class Csv:
    """Comma-separated values in UTF-8 with a header line, ``.gz`` too; cells stay text, an empty one is missing.

    Attributes:
        path: training rows. test_path: test rows; None holds out part of ``path``.
        delimiter: between cells, one character.
    """

    path: str
    test_path: str | None = None
    delimiter: str = ","

    def rows(self, part: Part, notes: list[str]) -> Iterator[Row] | None:
        path = self.path if part == "train" else self.test_path
        return None if path is None else iter(self._read(existing(path)))

    def fingerprint(self) -> str:
        return digest_of(self.path, self.test_path)

    def _read(self, file: Path) -> list[Row]:
        problems, rows = Problems(), []
        with io.TextIOWrapper(opened(file), encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter=self.delimiter, strict=True)
            try:
                for name in repeated(reader.fieldnames or ()):
                    problem = f"the column {shown(name)} stands twice in the header"
                    problems.add(f"{file}:1", "line", problem, "rename or delete one of them")
                for row in reader:
                    where = f"{file}:{reader.line_num}"
                    if None in row or None in row.values():
                        problem = f"another number of cells than the header (got {shown(list(row.values()))})"
                        problems.add(where, "line", problem, "quote cells that hold the delimiter")
                    rows.append((where, {name: value or None for name, value in row.items()}))
            except csv.Error as error:
                problems.add(f"{file}:{reader.reader.line_num}", "line", f"not readable as CSV ({error})", "repair it")
            except UnicodeDecodeError:
                problems.add(*_undecodable(file), "save as UTF-8")
            except DAMAGED as error:
                problems.add(f"{file}:{reader.reader.line_num + 1}", "file", *damage(error))
        if not rows and not problems.lines:
            problems.add(f"{file}:1", "file", "has no rows", "a header line, then one line per question")
        problems.raise_if_any()
        return rows


@dataclass(frozen=True, kw_only=True)
class Parquet:
    """A Parquet file, read through ``datasets``.

    Attributes:
        path: training rows. test_path: test rows; None holds out part of ``path``.
    """

    path: str
    test_path: str | None = None

    def rows(self, part: Part, notes: list[str]) -> Iterator[Row] | None:
        path = self.path if part == "train" else self.test_path
        if path is None:
            return None
        import datasets  # heavy

        file = existing(path)
        try:
            table = datasets.load_dataset("parquet", data_files=str(file), split="train")
        except Exception as error:  # datasets wraps whatever its readers raise
            problem = f"not readable as Parquet ({error.__cause__ or error})"
            raise DataError(f"{file} file: {problem}. Fix: write it again, or choose another reader") from error
        return ((f"{file}:{i}", dict(row)) for i, row in enumerate(table, start=1))

    def fingerprint(self) -> str:
        return digest_of(self.path, self.test_path)


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A data set of the Hugging Face hub, or a local directory in its layout, through ``datasets``.

    Attributes:
        name, subset, revision: as ``datasets.load_dataset`` takes them; a pinned revision makes runs repeatable.
        split, test_split: None as ``test_split`` holds out part of ``split``.
        streaming: read rows as they come instead of loading the set; for sets larger than memory, with ``max_train``.
    """

    name: str
    subset: str | None = None
    split: str = "train"
    test_split: str | None = None
    revision: str | None = None
    streaming: bool = False

    def rows(self, part: Part, notes: list[str]) -> Iterator[Row] | None:
        split = self.split if part == "train" else self.test_split
        if split is None:
            return None
        import datasets  # heavy

        try:
            table = datasets.load_dataset(
                self.name, self.subset, split=split, revision=self.revision, streaming=self.streaming
            )
        except Exception as error:  # network, names, formats: datasets raises them all
            raise DataError(
                f"{self.name} {split}: can't be loaded ({type(error).__name__}: {error}). Fix: check name, subset and "
                "split, the network, or download it once and give its local path"
            ) from error
        return ((f"{self.name}/{split}:{i}", dict(row)) for i, row in enumerate(table, start=1))

    def fingerprint(self) -> str:
        return f"{self.name}@{self.revision}"


def reader_of(path: str, test_path: str | None = None) -> Reader:
    """The reader for a file, by the end of its name: ``.jsonl`` (also ``.json``), ``.csv``, ``.tsv``, each
    also with ``.gz`` behind it, and ``.parquet``.

    Raises:
        DataError: another ending.
    """
    ending = "".join(Path(path.removesuffix(".gz")).suffixes[-1:]).lower()
    if ending in (".jsonl", ".json"):
        return Jsonl(path=path, test_path=test_path)
    if ending in (".csv", ".tsv"):
        return Csv(path=path, test_path=test_path, delimiter="\t" if ending == ".tsv" else ",")
    if ending == ".parquet" and path.endswith(".gz"):
        raise DataError(f"{path} file: Parquet is compressed inside. Fix: gunzip it")
    if ending == ".parquet":
        return Parquet(path=path, test_path=test_path)
    raise DataError(f"{path} file: no reader for names that end in {ending!r}. Fix: .jsonl, .csv, .tsv or .parquet")


def _undecodable(file: Path) -> tuple[str, str, str]:
    """Place, field and problem of the first line that is not UTF-8."""
    with opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"{file}:{number}", "line", f"not UTF-8 at byte {error.start} (got 0x{line[error.start]:02x})"
    return f"{file}", "file", "not UTF-8"
