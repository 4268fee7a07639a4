"""Which evaluation prompts stand in data that a model was trained on: by whole prompts, or by n words in a row."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from components.data.cleaning import words, words_of
from components.data.corpus import DataError
from components.data.files import DAMAGED, damage, opened
from components.types import Task

_ENDINGS = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".md", ".parquet")
_START = 1 << 16  # bytes that show whether a file is text
_TEXTS = "name the text that it was trained on: JSON Lines, CSV, TSV, plain text or Parquet"


def seen_in(tasks: Sequence[Task], texts: Iterable[str], *, n: int) -> set[str]:
    """Ids of the tasks that share ``n`` words in a row with one of the texts; shorter prompts are looked for whole.

    Words of more than 1 % of the prompts (and of three or more) are a template, not content. Source: arXiv:2005.14165,
    appendix C, with n = 13; arXiv:2501.12948, D.1, with 10.

    Args:
        n: 0 looks for whole prompts only.
    """
    wanted: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for task in tasks:
        prompt = words_of(task.messages)
        size = min(n, len(prompt)) if n else len(prompt)
        for i in range(len(prompt) - size + 1) if size else ():
            wanted[tuple(prompt[i : i + size])].add(task.id)
    common = max(2, 0.01 * len(tasks))
    wanted = defaultdict(set, {gram: ids for gram, ids in wanted.items() if len(ids) <= common})
    sizes = sorted({len(gram) for gram in wanted})
    first_words = {gram[0] for gram in wanted}
    found: set[str] = set()
    for text in texts:
        said = words(text)
        for i, word in enumerate(said):
            if word in first_words:
                for size in sizes:
                    found |= wanted.get(tuple(said[i : i + size]), set())
    return found


def texts_of(paths: Iterable[str]) -> Iterator[str]:
    """All text in files, and in the files below directories: JSON's and tables' cells, lines of anything else.

    Raises:
        DataError: what `unreadable` finds; a file that turns out to be damaged, or to hold no words.
    """
    paths = list(paths)
    if problems := unreadable(paths):
        raise DataError("\n".join(problems))
    named = {str(Path(name).expanduser()) for name in paths}  # others may be empty: they were found in a directory
    for file in _files(paths):
        said = False
        try:
            for text in _texts(file):
                said = said or any(map(str.isalnum, text))
                yield text
        except DAMAGED as error:
            raise DataError(_told(str(file), *damage(error))) from error
        if not said and (file.stat().st_size or str(file) in named):
            raise DataError(_told(str(file), "there is no text in it to compare with", _TEXTS))


def unreadable(paths: Iterable[str]) -> list[str]:
    """What can be said against paths for `texts_of` at a glance: not there, no files of text below, binary files."""
    problems = []
    for name in paths:
        path = Path(name).expanduser()
        if not path.exists():
            fix = "name files or directories"
            problems.append(_told(name, f"does not exist (working directory {Path.cwd()})", fix))
        elif path.is_dir() and not _files([name]):
            problems.append(_told(name, f"holds no file that ends in {', '.join(_ENDINGS)}, or these with .gz", _TEXTS))
        else:
            found = ((file, _no_text(file)) for file in _files([name]))
            problems += [_told(str(file), *problem) for file, problem in found if problem]
    return problems


def _no_text(file: Path) -> tuple[str, str] | None:
    """Why the beginning of a file is no text, and the remedy."""
    try:
        with opened(file) as content:
            start = content.read(_START)
    except DAMAGED as error:
        return damage(error)
    except OSError as error:
        return f"can't be read ({error.strerror})", "make it readable"
    if _suffix(file) == ".parquet":
        return (
            None if start.startswith(b"PAR1") else ("is no Parquet, as its name says", "write it again, or rename it")
        )
    return ("is a binary file, no text can be read from it", _TEXTS) if b"\0" in start else None


def _told(name: str, problem: str, fix: str) -> str:
    return f"trained_on: {name} {problem}. Fix: {fix}"


def _files(paths: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        path = path.expanduser()
        found += [path] if path.is_file() else sorted(p for p in path.rglob("*") if _suffix(p) in _ENDINGS)
    return [file for file in found if file.is_file()]


def _suffix(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def _texts(file: Path) -> Iterator[str]:
    if _suffix(file) == ".parquet":
        import pyarrow.parquet  # heavy, and only for such files

        try:
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches():
                yield from _strings(batch.to_pylist())
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(_told(str(file), f"is not readable as Parquet ({error})", "write it again")) from error
        return
    with io.TextIOWrapper(opened(file), encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if _suffix(file) in (".jsonl", ".json") and line.lstrip()[:1] in ("{", "["):
                try:
                    yield from _strings(json.loads(line))
                    continue
                except (ValueError, RecursionError):
                    pass  # a JSON file over several lines: its lines hold the text as well
            yield line


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
