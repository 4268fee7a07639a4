"""Which evaluation prompts stand in data that a model was trained on: by whole prompts, or by n words in a row."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from components.data.cleaning import words, words_of
from components.data.corpus import DataError
from components.types import Task

_ENDINGS = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".md", ".parquet")


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
        DataError: a path that does not exist.
    """
    for name in paths:
        path = Path(name).expanduser()
        if not path.exists():
            raise DataError(
                f"trained_on: {name} does not exist (working directory {Path.cwd()}). Fix: name files or directories"
            )
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if _suffix(p) in _ENDINGS)
        for file in files:
            yield from _texts(file)


def _suffix(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def _texts(file: Path) -> Iterator[str]:
    if _suffix(file) == ".parquet":
        import pyarrow.parquet  # heavy, and only for such files

        for batch in pyarrow.parquet.ParquetFile(file).iter_batches():
            yield from _strings(batch.to_pylist())
        return
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8", errors="replace") as lines:
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
