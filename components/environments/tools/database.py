"""An SQLite database in memory, the episode's own: the same answers every time, and nothing outside of it in reach."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

from components.environments.tool_loop import ToolError
from components.rng import derive
from components.types import Task

_STEPS = 2_000_000  # of SQLite's virtual machine per query, about 0.2 s: a limit that no load of the machine changes
_TICK = 1000
_PAGES, _LENGTH, _ROWS = 4096, 1_000_000, 100
_FORBIDDEN = {
    getattr(sqlite3, f"SQLITE_{name}") for name in ("ATTACH", "DETACH", "PRAGMA", "CREATE_VTABLE", "DROP_VTABLE")
}
_CLOCKS = {"current_time", "current_date", "current_timestamp", "load_extension"}


class DatabaseSession:
    """Begins with ``task.meta["database"]``, SQL statements; at ``random()`` with the task's id as seed."""

    def __init__(self, task: Task | None) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        # The tools of an episode are called one at a time, if not always from one thread.
        script = "" if task is None else task.meta.get("database", "")
        stream = random.Random(derive("database", "" if task is None else task.id))
        self._connection.create_function("random", 0, lambda: stream.getrandbits(63) - 2**62)
        self._connection.create_function("randomblob", 1, lambda n: stream.randbytes(min(int(n), 1000)))
        self._connection.execute(f"PRAGMA max_page_count = {_PAGES}")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
        self._ticks = 0
        # What a task begins with may come from anywhere, too: it is no way to other files either.
        self._connection.set_authorizer(authorise)
        self._connection.set_progress_handler(self._tick, _TICK)
        self._connection.executescript(script if isinstance(script, str) else ";\n".join(script))

    def query(self, sql: str) -> str:
        """Run one SQL statement; rows come back one a line, columns separated by |.

        Args:
            sql: a statement of SQLite.
        """
        self._ticks = 0
        try:
            cursor = self._connection.execute(sql)
            rows = cursor.fetchmany(_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            over = self._ticks * _TICK >= _STEPS
            raise ToolError("the query takes too long" if over else str(error)) from None
        if cursor.description is None:
            return f"ok, {max(cursor.rowcount, 0)} rows changed"
        head = "|".join(column[0] for column in cursor.description)
        lines = [head, *("|".join("" if v is None else str(v) for v in row) for row in rows[:_ROWS])]
        return "\n".join([*lines, "…"] if len(rows) > _ROWS else lines)

    def state(self) -> dict[str, Any]:
        """Every table's columns and rows, in the order of the rows' ids; an open transaction is rolled back."""
        if self._connection.in_transaction:
            self._connection.rollback()
        self._connection.set_progress_handler(None, 0)  # of what is there, all is read
        try:
            return self._tables()
        finally:
            self._connection.set_progress_handler(self._tick, _TICK)

    def close(self) -> None:
        self._connection.close()

    def _tables(self) -> dict[str, Any]:
        names = self._connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        tables = {}
        for (name,) in names.fetchall():
            cursor = self._connection.execute(f'SELECT * FROM "{name.replace(chr(34), chr(34) * 2)}"')
            rows = [[v.hex() if isinstance(v, bytes) else v for v in row] for row in cursor.fetchall()]
            tables[name] = {"columns": [column[0] for column in cursor.description], "rows": rows}
        return tables

    def _tick(self) -> bool:
        self._ticks += 1
        return self._ticks * _TICK >= _STEPS


def authorise(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """SQLite's authorizer: other files, pragmas, virtual tables and the clock are refused."""
    # Of a function the name is the second argument.
    clock = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _CLOCKS
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN or clock else sqlite3.SQLITE_OK


class Database:
    """The toolset: ``query``; its state is every table. SQLite's own clock, other files and pragmas are refused."""

    name = "database"
    tools = (DatabaseSession.query,)

    def open(self, task: Task | None) -> DatabaseSession:
        return DatabaseSession(task)
