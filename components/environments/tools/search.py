"""Search in a local collection of texts, ranked by BM25 (package ``rank_bm25``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.environments.tool_loop import ToolError
from components.types import Task

_EXCERPT = 160  # characters of a text shown in a result
_MOST = 10


class Index:
    """Texts by id, and their words' statistics. Built once, shared by episodes, never changed."""

    def __init__(self, documents: Sequence[Mapping[str, str]]) -> None:
        try:
            from rank_bm25 import BM25Okapi  # optional
        except ImportError:
            raise ImportError("search needs the package rank_bm25. Fix: pip install r1flow[search]") from None
        if not documents:
            raise ValueError("search: no documents. Fix: name a JSONL file of {id, text}, or give the task documents")
        self.texts = {str(row["id"]): row for row in documents}
        self.ids = list(self.texts)
        self._ranking = BM25Okapi([_words(f"{row.get('title', '')} {row['text']}") for row in self.texts.values()])

    def best(self, query: str, count: int) -> list[str]:
        """Ids of the best matches; equal ones in the order of the collection, none that shares no word."""
        words = _words(query)
        scores = self._ranking.get_scores(words)
        known = [set(words) & frequencies.keys() for frequencies in self._ranking.doc_freqs]
        order = sorted((i for i in range(len(self.ids)) if known[i]), key=lambda i: (-scores[i], i))
        return [self.ids[i] for i in order[:count]]


class SearchSession:
    """Reads ``task.meta["documents"]`` (id, text and perhaps title each), if there are any."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.opened: list[str] = []

    def search(self, query: str, count: int = 3) -> str:
        """Find texts; one result a line: id, title and the beginning of the text.

        Args:
            query: words to look for.
            count: results wanted, at most 10.
        """
        if not 1 <= count <= _MOST:
            raise ToolError(f"count must lie in [1, {_MOST}], got {count}")
        found = self._index.best(query[:1000], count)
        rows = ((name, self._index.texts[name]) for name in found)
        lines = [f"{name}: {row.get('title', '')} {' '.join(row['text'].split())[:_EXCERPT]}" for name, row in rows]
        return "\n".join(lines) or "nothing found"

    def read(self, id: str) -> str:
        """The whole of a text.

        Args:
            id: as `search` names it.
        """
        if id not in self._index.texts:
            raise ToolError(f"no text {id[:80]!r}")
        self.opened.append(id)
        return self._index.texts[id]["text"]

    def state(self) -> dict[str, Any]:
        return {"opened": list(self.opened)}

    def close(self) -> None:
        pass


class Search:
    """The toolset: ``search`` and ``read``; its state says which texts were read.

    Args:
        path: JSONL file with ``id``, ``text`` and perhaps ``title`` each; a task's own documents go before it.

    Raises:
        ValueError: a line that lacks them.
    """

    name = "search"
    tools = (SearchSession.search, SearchSession.read)

    def __init__(self, *, path: str | Path | None = None) -> None:
        self.path = path
        self._common: Index | None = None

    def open(self, task: Task | None) -> SearchSession:
        own = None if task is None else task.meta.get("documents")
        if own is not None:
            return SearchSession(Index(own))
        if self._common is None:
            self._common = Index(_read(Path(self.path)) if self.path is not None else [])
        return SearchSession(self._common)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_common": None}


def _words(text: str) -> list[str]:
    return "".join(char.lower() if char.isalnum() else " " for char in text).split()


def _read(path: Path) -> list[dict[str, str]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        if not isinstance(row, dict) or not {"id", "text"} <= row.keys():
            raise ValueError(f"{path}, line {number}: no id and text. Fix: write both in every line")
        rows.append(row)
    return rows
