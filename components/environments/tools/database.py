"""An SQLite database in memory, the episode's own: the same answers every time, and nothing outside of it in reach."""

from __future__ import annotations

import math
import random
import sqlite3
import time
from contextlib import closing
from functools import cache
from typing import Any

from components.environments.tool_loop import ToolError
from components.rng import derive
from components.types import Task

NOW = "2023-11-14 22:13:20"  # the time that an episode is at, that of a workspace's files
_STEPS = 2_000_000  # of SQLite's virtual machine per query, about 0.2 s: a limit that no load of the machine changes
_SECONDS = 2.0  # of the CPU: only for steps that are long, as LIKE on long texts is
_TICK = 100
_PAGES, _LENGTH, _PATTERN, _COLUMNS, _SQL = 4096, 100_000, 100, 200, 60_000
_ROWS, _SHOWN = 100, 50_000  # rows, characters of an answer
_HEAP = 256 << 20  # bytes, of all databases of the process: SQLite has no limit for one
_FORBIDDEN = {
    getattr(sqlite3, f"SQLITE_{name}") for name in ("ATTACH", "DETACH", "PRAGMA", "CREATE_VTABLE", "DROP_VTABLE")
}
_OF_THIS_MACHINE = {
    *("current_time", "current_date", "current_timestamp", "load_extension", "fts3_tokenizer", "sqlite_version"),
    *("sqlite_source_id", "sqlite_compileoption_get", "sqlite_compileoption_used"),
}
_TIMES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")


class DatabaseSession:
    """Begins with ``task.meta["database"]``, SQL statements; at ``random()`` with the task's id as seed.

    Args:
        now: what ``date('now')`` and its like say.

    Raises:
        sqlite3.Error: the statements fail, or leave a transaction open.
    """

    def __init__(self, task: Task | None, now: str = NOW) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        # The tools of an episode are called one at a time, if not always from one thread.
        script = "" if task is None else task.meta.get("database", "")
        stream = random.Random(derive("database", "" if task is None else task.id))
        self._connection.create_function("random", 0, lambda: stream.getrandbits(63) - 2**62)
        self._connection.create_function("randomblob", 1, lambda n: stream.randbytes(min(int(n), 1000)))
        _stop_clock(self._connection, now)
        _limit_heap()
        for limit in (f"max_page_count = {_PAGES}", "temp_store = MEMORY"):
            self._connection.execute(f"PRAGMA {limit}")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _PATTERN)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _COLUMNS)
        # SQLite's own take the product of two lengths.
        self._connection.create_function("instr", 2, _instr, deterministic=True)
        self._connection.create_function("replace", 3, _replace, deterministic=True)
        self._connection.text_factory = _text
        self._begin()
        # What a task begins with may come from anywhere, too: it is no way to other files either.
        self._connection.set_authorizer(authorise)
        self._connection.set_progress_handler(self._tick, _TICK)
        self._connection.executescript(script if isinstance(script, str) else ";\n".join(script))
        if self._connection.in_transaction:
            raise sqlite3.OperationalError("the statements leave a transaction open")

    def query(self, sql: str) -> str:
        """Run one SQL statement; rows come back one a line, columns separated by |.

        Args:
            sql: a statement of SQLite.
        """
        self._begin()
        if len(sql) > _SQL:
            raise ToolError(f"a statement has at most {_SQL:,} characters")
        try:
            cursor = self._connection.execute(sql)
            lines = _lines(cursor)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            told = "the query takes too much memory" if isinstance(error, MemoryError) else str(error)
            raise ToolError("the query takes too long" if self._over() else told) from None
        if cursor.description is None:
            return f"ok, {max(cursor.rowcount, 0)} rows changed"
        head = "|".join(column[0] for column in cursor.description)
        return "\n".join([head, *lines])

    def state(self) -> dict[str, Any]:
        """Every table's columns and rows, in the order of the rows' ids, and the kind and definition of indexes, views
        and triggers; an open transaction is rolled back. What JSON cannot hold is ``{"blob": hexadecimal digits}`` or
        ``{"real": "inf"}``."""
        if self._connection.in_transaction:
            self._connection.rollback()
        self._connection.set_progress_handler(None, 0)  # of what is there, all is read
        try:
            return self._objects()
        finally:
            self._connection.set_progress_handler(self._tick, _TICK)

    def close(self) -> None:
        self._connection.close()

    def _objects(self) -> dict[str, Any]:
        listed = self._connection.execute(
            "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name, type"
        )
        found: dict[str, Any] = {}
        for kind, name, sql in listed.fetchall():
            if kind != "table":
                found[f"{kind} {name}"] = {"kind": kind, "definition": " ".join(sql.split())}
                continue
            try:
                cursor = self._connection.execute(f'SELECT * FROM "{name.replace(chr(34), chr(34) * 2)}"')
                rows = [[_plain(value) for value in row] for row in cursor.fetchall()]
            except sqlite3.Error as error:  # a column that is computed, and cannot be
                found[name] = {"kind": kind, "error": str(error)}
                continue
            found[name] = {"columns": [column[0] for column in cursor.description], "rows": rows}
        return found

    def _begin(self) -> None:
        self._ticks, self._began = 0, time.thread_time()

    def _over(self) -> bool:
        return self._ticks * _TICK >= _STEPS or time.thread_time() - self._began >= _SECONDS

    def _tick(self) -> bool:
        self._ticks += 1
        return self._over()


def authorise(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """SQLite's authorizer: other files, pragmas, virtual tables and what tells of the machine are refused."""
    # Of a function the name is the second argument.
    told = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _OF_THIS_MACHINE
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN or told else sqlite3.SQLITE_OK


class Database:
    """The toolset: ``query``; its state is every table. It is always `NOW`; other files and pragmas are refused."""

    name = "database"
    tools = (DatabaseSession.query,)

    def open(self, task: Task | None) -> DatabaseSession:
        return DatabaseSession(task)


def _lines(cursor: sqlite3.Cursor) -> list[str]:
    """Rows as they are shown, "…" for those that are left out."""
    lines: list[str] = []
    size = 0
    for row in cursor:
        if len(lines) == _ROWS or size > _SHOWN:
            return [*lines, "…"]
        lines.append("|".join("" if value is None else str(value) for value in row))
        size += len(lines[-1])
    return lines


def _instr(text: Any, part: Any) -> int | None:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _as_text(text).find(_as_text(part)) + 1


def _replace(text: Any, old: Any, new: Any) -> str | None:
    if text is None or old is None or new is None:
        return None
    text, old, new = _as_text(text), _as_text(old), _as_text(new)
    if old and len(text) + text.count(old) * (len(new) - len(old)) > _LENGTH:
        raise OverflowError("string or blob too big")
    return text.replace(old, new) if old else text


def _as_text(value: Any) -> str:
    return _text(value) if isinstance(value, bytes) else str(value)


@cache
def _limit_heap() -> None:
    """Once for the process, as SQLite has it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA hard_heap_limit = {_HEAP}")


def _stop_clock(connection: sqlite3.Connection, now: str) -> None:
    """SQLite's own functions of time, at a time that stays."""

    @cache  # few episodes ask for the time
    def clock() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", check_same_thread=False)

    def at(name: str) -> Any:
        def compute(*given: Any) -> Any:
            place = 1 if name == "strftime" else 0
            values = list(given) if len(given) > place else [*given, "now"]
            if isinstance(values[place], str) and values[place].strip().lower() == "now":
                values[place] = now
            return clock().execute(f"SELECT {name}({', '.join('?' * len(values))})", values).fetchone()[0]

        return compute

    for name in _TIMES:
        connection.create_function(name, -1, at(name), deterministic=True)


def _text(data: bytes) -> str:
    """SQLite stores any bytes as a text."""
    return data.decode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    return {"real": str(value)} if isinstance(value, float) and not math.isfinite(value) else value
