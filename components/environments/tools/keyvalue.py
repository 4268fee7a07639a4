"""A store of names and values, the episode's own."""

from __future__ import annotations

from typing import Any

from components.environments.tool_loop import ToolError
from components.types import Task

_MOST = 1000  # entries


class KeyValueSession:
    """Begins with ``task.meta["store"]``, a mapping of texts."""

    def __init__(self, task: Task | None, *, reads: bool = False) -> None:
        given = {} if task is None else task.meta.get("store", {})
        self.entries = {str(key): str(value) for key, value in given.items()}
        self._read: dict[str, int] | None = {} if reads else None

    def get(self, key: str) -> str:
        """Value of a key.

        Args:
            key: its name.
        """
        if key not in self.entries:
            raise ToolError(f"no key {key[:80]!r}")
        if self._read is not None:
            self._read[key] = self._read.get(key, 0) + 1
        return self.entries[key]

    def put(self, key: str, value: str) -> str:
        """Set a key to a value.

        Args:
            key: its name.
            value: replaces the old one.
        """
        if key not in self.entries and len(self.entries) >= _MOST:
            raise ToolError(f"the store is full ({_MOST} keys)")
        self.entries[key] = value
        return "ok"

    def delete(self, key: str) -> str:
        """Remove a key.

        Args:
            key: its name.
        """
        if self.entries.pop(key, None) is None:
            raise ToolError(f"no key {key[:80]!r}")
        return "ok"

    def state(self) -> dict[str, Any]:
        return dict(self.entries) if self._read is None else {"entries": dict(self.entries), "read": dict(self._read)}

    def close(self) -> None:
        self.entries.clear()


class KeyValue:
    """The toolset: ``get``, ``put``, ``delete``; its state is the store.

    Args:
        reads: the state is ``{"entries": the store, "read": key → how often}``, so that a check can forbid reading.
    """

    name = "store"
    tools = (KeyValueSession.get, KeyValueSession.put, KeyValueSession.delete)

    def __init__(self, *, reads: bool = False) -> None:
        self.reads = reads

    def open(self, task: Task | None) -> KeyValueSession:
        return KeyValueSession(task, reads=self.reads)
