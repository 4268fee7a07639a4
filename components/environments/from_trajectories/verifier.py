"""What must hold at the end, in the vocabulary of a task's ``meta.check``, and what must not be looked at.

Every file and every table is asked for: those that the solution changed or made with what it made of them, those that
it removed as absent, and those that it left alone as they were, so that one who solves a task by destroying the rest
does not pass. Rows are asked for in any order, files that are no text or too long by their digest. Times, owners and
rights of files are never looked at, nor is the way by which the end was reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.from_trajectories.transcript import Action, Rejected

_RIGHTS = re.compile(r"\b(?:chmod|chown|chgrp|setfacl)\b")
_OF_RIGHTS = re.compile(
    r"\b(?:executable|permissions?|rights?|chmod|chown|mode|owners?|read-?only|writable|readable)\b",
    re.IGNORECASE,
)
_FILE = re.compile(r"(?<![\w*?./@:-])[\w-]{2,}(?:[./][\w-]+)*\.[A-Za-z][A-Za-z0-9]{1,4}(?![\w*])")


def check_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The check of an end that was reached from a beginning, both as toolsets leave them.

    Raises:
        Rejected: "unverifiable", a view, index or trigger that the solution makes.
    """
    makers = {"shell": _files, "database": _tables, "store": _entries}
    return {name: makers[name](before[name], after[name]) for name in after}


def _named(asked: Mapping[str, Any]) -> dict[str, Any]:
    """With names as a check writes them: a name that begins with $ has one more."""
    return {f"${name}" if name.startswith("$") else name: value for name, value in asked.items()}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of the files, tables and keys that differ."""
    found = []
    for name in after:
        old, new = (state[name]["files"] if name == "shell" else state[name] for state in (before, after))
        found += sorted(key for key in old.keys() | new.keys() if not _alike(old.get(key, ...), new.get(key, ...)))
    return found


def asks_for_rights(instruction: str, actions: Sequence[Action]) -> str | None:
    """Whether an instruction is about what a check does not look at."""
    used = next((found[0] for a in actions if a.tool == "shell" and (found := _RIGHTS.search(a.text))), None)
    if used is None or not _OF_RIGHTS.search(instruction):
        return None
    return f"the instruction is about rights or owners of files ({used}), which are not looked at"


def unmet(instruction: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """A file that the instruction names, and that occurs neither in the beginning nor in the end."""
    if "shell" not in after:
        return None
    files = [item for state in (before, after) for item in state["shell"]["files"].items()]
    known = [text for path, held in files for text in (path, *_spoken(held)) if text]
    for found in _FILE.finditer(instruction):
        if not any(found[0] in text or text.rstrip("/") in found[0].split("/") for text in known):
            return found[0]
    return None


def _spoken(held: Any) -> list[str]:
    return [held] if isinstance(held, str) else [str(held["link"])] if "link" in held else []


def _files(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    old, new = before["files"], after["files"]
    asked: dict[str, Any] = {}
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            asked[path] = {"$absent": True}
        elif path.endswith("/") and any(other != path and other.startswith(path) for other in new):
            continue  # it is there if what is in it is
        else:
            asked[path] = new[path]
    return {"files": _named(asked)}


def _tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {name: {"$absent": True} for name in before if name not in after}
    for name, table in after.items():
        if "rows" in table:
            asked[name] = {"$exactly": {"columns": table["columns"], "rows": {"$rows": table["rows"]}}}
        elif before.get(name) == table:
            asked[name] = table
        else:
            raise Rejected("unverifiable", f"it makes a {table['kind']}, which could be written in other words")
    return _named(asked)


def _entries(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return _named({**{key: {"$absent": True} for key in before if key not in after}, **after})


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping) and "rows" in a and "rows" in b:
        return a.get("columns") == b.get("columns") and sorted(map(repr, a["rows"])) == sorted(map(repr, b["rows"]))
    return type(a) is type(b) and a == b
