"""The tools of one episode, called by name: what each call came to, and what is left at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

from components.environments.tool_loop import ToolError
from components.environments.tools.formats import Call, Malformed
from components.environments.tools.schema import Tool
from components.types import Task

MAX_STATE = 1 << 20  # characters of an episode's final state as JSON
Kind = Literal["ok", "invalid", "failed"]


class Broken(RuntimeError):
    """The tool's machinery broke, not the tool: the episode cannot be scored."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a call came to.

    Attributes:
        kind: "ok"; "invalid": malformed, no such tool, or arguments that it refuses; "failed": the tool raised.
        text: its result, or what to tell the policy.
    """

    kind: Kind
    text: str


class Host(Protocol):
    """The tools of one episode, here or elsewhere."""

    def call(self, call: Call | Malformed) -> Said:
        """Raises Broken, and TimeoutError if the tool did not answer in time."""
        ...

    def state(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Here:
    """Tools in this process.

    Args:
        tools: functions and toolsets.
        task: what sessions begin with; names of the tools offered in ``meta["tools"]``, else all are.
        max_chars: longer results are cut.
    """

    def __init__(self, tools: Sequence[Any], task: Task | None, max_chars: int) -> None:
        self._max_chars = max_chars
        self._sessions: dict[str, Any] = {}
        self._tools: dict[str, tuple[Tool, Callable[..., Any]]] = {}
        for entry in tools:
            if not hasattr(entry, "open"):
                tool = _tool(entry)
                self._tools[tool.name] = (tool, entry)
                continue
            session = self._sessions[entry.name] = entry.open(task)
            for function in entry.tools:
                tool = _tool(function, method=True)
                self._tools[tool.name] = (tool, getattr(session, function.__name__))
        allowed = offered(task)
        if allowed is not None:
            self._tools = {name: self._tools[name] for name in self._tools if name in allowed}

    def call(self, call: Call | Malformed) -> Said:
        if isinstance(call, Malformed):
            return Said("invalid", f"error: {call.reason}")
        if call.name not in self._tools:
            return Said("invalid", self._cut(f"error: no tool {call.name[:80]!r}"))
        tool, function = self._tools[call.name]
        try:
            return Said("ok", self._cut(_text(function(**tool.check(call.arguments)))))
        except ToolError as error:
            return Said("invalid", self._cut(f"error: {error}"))
        except (Broken, TimeoutError):
            raise
        except Exception as error:  # the tool's own failure is the policy's to read
            return Said("failed", self._cut(f"error: {type(error).__name__}: {error}"))

    def knows(self, name: str) -> bool:
        """Whether there is such a tool."""
        return name in self._tools

    def state(self) -> dict[str, Any]:
        """Final state of each toolset by its name, ``{"too_large": characters}`` where it is, so that a policy cannot
        escape a check by filling its world. Raises Broken: it is no JSON."""
        left = {name: session.state() for name, session in self._sessions.items()}
        try:
            size = len(json.dumps(left, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise Broken(f"the tools' final state is no JSON: {error}") from None
        if size > MAX_STATE:
            return {"too_large": size}
        return left

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def _cut(self, text: str) -> str:
        return text if len(text) <= self._max_chars else text[: max(0, self._max_chars - 1)] + "…"


class Both:
    """Some tools in this process, the others in one of their own."""

    def __init__(self, here: Here, elsewhere: Host) -> None:
        self._here, self._elsewhere = here, elsewhere

    def call(self, call: Call | Malformed) -> Said:
        host = self._here if isinstance(call, Malformed) or self._here.knows(call.name) else self._elsewhere
        return host.call(call)

    def state(self) -> dict[str, Any]:
        return {**self._here.state(), **self._elsewhere.state()}

    def close(self) -> None:
        self._here.close()
        self._elsewhere.close()


def listed(tools: Sequence[Any]) -> list[Tool]:
    """Every tool of functions and toolsets.

    Raises:
        ValueError: two tools of one name, a toolset without name or tools, or a function that cannot be a tool.
    """
    for entry in tools:
        if hasattr(entry, "open") and not (hasattr(entry, "name") and hasattr(entry, "tools")):
            lacks = " and ".join(name for name in ("name", "tools") if not hasattr(entry, name))
            raise ValueError(
                f"toolset {type(entry).__module__}.{type(entry).__qualname__}: has no {lacks}. Fix: add it"
            )
    found = [
        tool
        for entry in tools
        for tool in ([Tool.of(f, method=True) for f in entry.tools] if hasattr(entry, "open") else [Tool.of(entry)])
    ]
    names = [tool.name for tool in found]
    if twins := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"tools: more than one is named {', '.join(sorted(twins))}. Fix: rename one")
    return found


def offered(task: Task | None) -> Sequence[str] | None:
    """Names of the tools that a task offers; None for all."""
    return None if task is None else task.meta.get("tools")


@lru_cache(maxsize=256)
def _tool(function: Callable[..., Any], method: bool = False) -> Tool:
    """`Tool.of`, once: an episode lasts milliseconds, and so does making a schema."""
    return Tool.of(function, method=method)


def _text(value: Any) -> str:
    """A tool's result as text: JSON for what is not text already."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_json(call: Call | Malformed) -> Mapping[str, Any]:
    """A call for another process."""
    return {"reason": call.reason} if isinstance(call, Malformed) else {"name": call.name, "arguments": call.arguments}


def from_json(row: Mapping[str, Any]) -> Call | Malformed:
    """Inverse of `as_json`."""
    return Malformed(row["reason"]) if "reason" in row else Call(row["name"], row["arguments"])
