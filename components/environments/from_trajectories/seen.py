"""The beginning of a recorded episode, as far as its actions let it be seen.

Files: whole texts that were shown before anything could have changed them, and names that were listed. Tables: their
definitions and rows, likewise. Whether this is enough is decided by the replay: it has to say what was recorded.
"""

from __future__ import annotations

import posixpath
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

from components.environments.from_trajectories.calls import WORKSPACE
from components.environments.from_trajectories.reach import path_from
from components.environments.from_trajectories.transcript import Action
from components.environments.from_trajectories.words import only_reads, program, redirections, simple_commands

_SELECT_ALL = re.compile(
    r"\s*SELECT\s+\*\s+FROM\s+[\"'`\[]?(\w+)[\"'`\]]?\s*(?:ORDER\s+BY\s+[\w,\s]+)?;?\s*", re.IGNORECASE
)
_SCHEMA = re.compile(r"\bsqlite_(?:schema|master)\b", re.IGNORECASE)
_CREATE = re.compile(r"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?[\"'`\[]?(\w+)", re.IGNORECASE)
_CHANGED = re.compile(r"\b(?:INTO|UPDATE|FROM|TABLE(?:\s+IF\s+(?:NOT\s+)?EXISTS)?)\s+[\"'`\[]?(\w+)", re.IGNORECASE)


def seen_files(actions: Sequence[Action]) -> dict[str, str]:
    """Files of the workspace by path, as a task's ``meta.files`` has them."""
    texts: dict[str, str] = {}
    names: set[str] = set()
    touched: set[str] = set()
    place = ""
    for action in actions:
        if action.tool != "shell":
            continue
        command = action.arguments["command"]
        try:
            parts, targets = simple_commands(command), redirections(command)
        except ValueError:
            break
        reads = only_reads(command)
        if not reads:
            touched |= {path_from(place, word) for words in parts for word in words[1:]} | {
                path_from(place, t) for t in targets
            }
        if parts and parts[0][0] == "cd" and len(parts[0]) == 2:
            place = path_from(place, parts[0][1])
            parts = parts[1:]
        if not reads or action.failed or action.output is None or len(parts) != 1 or "|" in command:
            continue
        if (path := _whole(parts[0], action.output)) is not None:
            path = path_from(place, path)
            if not _is_touched(path, touched):
                texts.setdefault(path, action.output + "\n" if action.output else "")
        elif not touched:
            names |= _listed(parts[0], action.output, place)
    return _complete(texts, names)


def seen_tables(actions: Sequence[Action]) -> str:
    """Statements that make the tables, as a task's ``meta.database`` has them; "" if none was seen."""
    made: dict[str, str] = {}
    rows: dict[str, list[list[str]]] = {}
    headings: dict[str, list[str]] = {}
    touched: set[str] = set()
    for action in actions:
        if action.tool != "query":
            continue
        sql, said = action.arguments["sql"], action.output
        if not re.match(r"\s*(?:SELECT|WITH|EXPLAIN|VALUES)\b", sql, re.IGNORECASE):
            touched |= {found[1].lower() for found in _CHANGED.finditer(sql)}
        elif said is None or action.failed:
            continue
        elif _SCHEMA.search(sql):
            for statement in _definitions(said):
                found = _CREATE.match(statement)
                if found and found[1].lower() not in touched:
                    made.setdefault(found[1].lower(), statement)
        elif (found := _SELECT_ALL.fullmatch(sql)) and (name := found[1].lower()) not in touched and name not in rows:
            if said.endswith("…"):
                continue  # not all of it
            lines = [line.split("|") for line in said.split("\n")] if said else []
            headings[name], rows[name] = (lines[0], lines[1:]) if lines else ([], [])
    for name in [name for name in rows if name not in made and not all(map(str.isidentifier, headings[name]))]:
        del rows[name]  # shown without its columns' names
    script = [made.get(name) or _guessed(name, headings[name], rows[name]) for name in {**made, **rows}]
    for name, found in rows.items():
        script += _inserts(script, name, headings[name], found)
    return ";\n".join(script)


def _whole(words: list[str], output: str) -> str | None:
    """The file that a command shows from its beginning to its end."""
    name = program(words)
    options = [word for word in words[1:] if word.startswith("-")]
    files = [word for word in words[1:] if not word.startswith("-")]
    if name == "cat" and not options and len(files) == 1:
        return files[0]
    if name in ("head", "tail"):
        limit, numbers = 10, [word for word in words[1:] if word.lstrip("-n").isdigit()]
        if numbers:
            limit, files = int(numbers[0].lstrip("-n")), [word for word in files if word not in numbers]
        if len(files) == 1 and output.count("\n") + 1 < limit and len(options) <= 1:
            return files[0]
    return None


def _listed(words: list[str], output: str, place: str) -> set[str]:
    """Paths that ``ls`` and ``find`` name; directories end in / where that can be seen."""
    name, options = program(words), "".join(word for word in words[1:] if word.startswith("-"))
    folders = [word for word in words[1:] if not word.startswith("-")]
    lines = [line for line in output.split("\n") if line.strip()]
    if name == "ls" and set(options) <= set("-1aAFp") and len(folders) <= 1:
        base = path_from(place, folders[0]) if folders else place
        found = {line.rstrip("*@|=") if "F" in options else line for line in lines if line.strip("./")}
        return {posixpath.join(base, entry) for entry in found}
    if name == "find" and lines and all(line.startswith((".", WORKSPACE, *folders[:1])) for line in lines):
        kind = "/" if "-typed" in "".join(words) else ""
        return {path_from(place, line) + kind for line in lines if path_from(place, line)}
    return set()


def _complete(texts: dict[str, str], names: set[str]) -> dict[str, str]:
    """Texts, and what is only known by name: empty, a directory if something lies in it."""
    files = dict(texts)
    everything = set(texts) | names
    for name in sorted(names):
        inside = any(other.startswith(f"{name.rstrip('/')}/") and other != name for other in everything)
        if name not in files and not inside:
            files[name] = ""
    return {path: text for path, text in sorted(files.items()) if path and not path.startswith(("/", ".."))}


def _is_touched(path: str, touched: set[str]) -> bool:
    return any(
        path == other or path.startswith(f"{other}/") or not other or set(other) & set("*?[") for other in touched
    )


def _definitions(said: str) -> list[str]:
    """CREATE statements in what was said of a schema, one a line or over several."""
    starts = [found.start() for found in re.finditer(r"CREATE\s+TABLE\b", said, re.IGNORECASE)]
    pieces = [said[a:b] for a, b in zip(starts, [*starts[1:], len(said)], strict=True)]
    found = []
    for piece in pieces:
        text = piece.strip().rstrip("|;").strip()
        while (text and not sqlite3.complete_statement(text + ";")) or text.count("(") < text.count(")"):
            text = text[:-1]
        if text.rfind(")") > 0:
            found.append(text[: text.rfind(")") + 1])
    return found


def _guessed(name: str, columns: list[str], rows: list[list[str]]) -> str:
    kinds = [
        "INTEGER" if rows and all(_is_int(r[i]) for r in rows if i < len(r)) else "TEXT" for i in range(len(columns))
    ]
    return f'CREATE TABLE "{name}" ({", ".join(f"{_quoted(c)} {k}" for c, k in zip(columns, kinds, strict=True))})'


def _inserts(script: list[str], name: str, heading: list[str], rows: list[list[str]]) -> list[str]:
    """Statements that fill a table; a first line that does not name its columns is a row."""
    columns = _columns(script, name)
    if columns and [c.lower() for c in columns] != [c.lower() for c in heading] and heading:
        rows = [heading, *rows]
    wide = len(columns) or len(heading)
    if any(len(row) != wide for row in rows):
        return []
    values = [
        ", ".join(value if _is_int(value) else f"'{value.replace(chr(39), chr(39) * 2)}'" for value in row)
        for row in rows
    ]
    return [f'INSERT INTO "{name}" VALUES ({row})' for row in values]


def _columns(script: list[str], name: str) -> list[str]:
    with sqlite3.connect(":memory:") as connection:
        connection.set_authorizer(_only_tables)
        try:
            for statement in script:
                connection.execute(statement)
            return [entry[0] for entry in connection.execute(f"SELECT * FROM {_quoted(name)} LIMIT 0").description]
        except sqlite3.Error:
            return []


def _only_tables(action: int, *_: Any) -> int:
    wanted = ("CREATE_TABLE", "CREATE_INDEX", "INSERT", "READ", "SELECT", "UPDATE", "TRANSACTION", "REINDEX")
    return sqlite3.SQLITE_OK if action in {getattr(sqlite3, f"SQLITE_{w}") for w in wanted} else sqlite3.SQLITE_DENY


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_int(text: str) -> bool:
    return text.lstrip("-").isdigit() and text == str(int(text)) and len(text) < 19
