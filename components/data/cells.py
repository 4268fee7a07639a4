"""Typed access to the fields of one row; what is wrong with a value is told with its place."""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from components.data.corpus import Problems, shown

NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True)
class Cell:
    """Typed access to the fields of one row; what is wrong goes to ``problems``."""

    where: str
    row: Mapping[str, Any]
    columns: Mapping[str, str]
    problems: Problems

    def problem(self, name: str, problem: str, fix: str) -> None:
        self.problems.add(self.where, self.columns.get(name, name), problem, fix)

    def get(self, name: str) -> Any:
        """The value, or None. A column that was named in ``columns`` must be there."""
        column = self.columns.get(name, name)
        if column not in self.row and name in self.columns:
            self.problem(name, f"no such column{nearest(column, self.row)}", f"set columns.{name}")
        return self.row.get(column)

    def text(self, name: str, *, numbers: bool = False) -> str | None:
        value = self.get(name)
        if numbers and isinstance(value, int | float) and not isinstance(value, bool):
            if math.isfinite(value):
                return str(value)
            self.problem(name, f"too large to be a number (got {shown(value)})", "write it as text")
            return None
        if isinstance(value, str) and "\0" in value:
            self.problem(name, f"holds the character NUL (got {shown(value)})", "take it out, or drop the row")
            return None
        if value is None or isinstance(value, str):
            return value
        kinds = "text or a number" if numbers else "text"
        self.problem(name, f"expected {kinds} (got {shown(value)})", f"convert it to {kinds}")
        return None

    def name(self, name: str) -> str | None:
        value = self.text(name, numbers=True)
        if value is not None and not NAME.fullmatch(value):
            self.problem(name, f"not a name (got {shown(value)})", "1 to 80 letters, digits, dots, dashes, underscores")
        return value

    def slug(self, name: str) -> str | None:
        """Text as a name: what a name can't hold becomes a dash (``Counting & Probability``)."""
        value = self.text(name, numbers=True)
        if value is None:
            return None
        slug = "-".join(re.findall(r"[A-Za-z0-9._]+", value))[:80]
        if not slug:
            self.problem(name, f"not a name (got {shown(value)})", "letters, digits, dots, dashes, underscores")
        return slug or None

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object, or the text of one; {} if there is none. Another value is wrong in a column that was named."""
        value = self.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(value)
        if isinstance(value, dict):
            return value
        if value is not None and name in self.columns:
            self.problem(name, f"expected an object (got {shown(value)})", "one JSON object, or no such column")
        return {}

    def reply(self, name: str) -> str | None:
        """A response as text, or as the assistant's turn at the end of a list of messages."""
        value = self.get(name)
        if not isinstance(value, list):
            return self.text(name)
        last = value[-1] if value else None
        if isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str):
            return last["content"]
        self.problem(name, f"does not end with the assistant's turn (got {shown(last)})", "give text, or messages")
        return None

    def level(self) -> int:
        value = self.get("level")
        if value is None:
            return 0
        found = re.fullmatch(r"(?:[A-Za-z]{1,20} )?(\d{1,3})", str(value))
        if isinstance(value, bool) or found is None:
            self.problem("level", f"expected a whole number from 0 (got {shown(value)})", "0 is the easiest")
            return 0
        return int(found[1])


def is_blank(text: str) -> bool:
    """True if nothing in it can be seen: white space, control characters, zero-width ones."""
    return all(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in text)


def nearest(name: str, names: Iterable[str]) -> str:
    """``; the nearest is 'prompt'``, or what there is instead."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; the nearest is {close[0]!r}" if close else f" (got {', '.join(map(str, names))})"
