"""Chats with tool calls, as OpenAI's interfaces write them, and calls that stand as text in ``<tool_call>`` tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.from_trajectories.calls import actions_of
from components.environments.from_trajectories.transcript import Action, Rejected
from components.environments.tools.formats import Hermes, Malformed


def from_messages(row: Mapping[str, Any], tasks: Mapping[str, Any]) -> tuple[str, list[Action], dict[str, Any], bool]:
    """(instruction, actions, world, whether it came to its end).

    It came to its end if the assistant spoke, or called a tool that says so, after the last result.

    Raises:
        Rejected: nothing that could be replayed.
    """
    turns = row["messages"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise Rejected("unreadable", "messages is no list of objects")
    instruction: list[str] = []
    made: list[tuple[str, str, Any]] = []  # (id, name, arguments), in their order
    said: dict[str, str] = {}
    begun, open_calls, finished = False, [], False
    for turn in turns:
        role, text = turn.get("role"), _text(turn.get("content"))
        if role == "user":
            if begun and text.strip():
                raise Rejected("several_instructions", f"later the user said {text.strip()[:60]!r}")
            instruction.append(text)
        elif role == "assistant":
            calls = _calls(turn, text, len(made))
            begun, finished = begun or bool(calls), not calls
            made += calls
            open_calls = [identity for identity, _, _ in calls]
        elif role in ("tool", "function"):
            identity = turn.get("tool_call_id")
            identity = identity if identity in open_calls else next((c for c in open_calls if c not in said), None)
            if identity is None:
                raise Rejected("unreadable", "a tool's message without a call before it")
            said[identity] = text
    actions = []
    for identity, name, arguments in made:
        found = actions_of(name, arguments, said.get(identity))
        finished = finished or (not found and identity == made[-1][0])
        actions += found
    return "\n".join(instruction), actions, {}, finished


def _calls(turn: Mapping[str, Any], text: str, before: int) -> list[tuple[str, str, Any]]:
    listed = turn.get("tool_calls") or []
    if not listed and isinstance(single := turn.get("function_call"), Mapping):
        listed = [{"function": single}]
    if not listed and "<tool_call>" in text:
        found = Hermes().calls(text)
        if any(isinstance(call, Malformed) for call in found):
            raise Rejected("truncated", "a call that is cut off")
        return [(f"#{before + i}", c.name, c.arguments) for i, c in enumerate(found) if not isinstance(c, Malformed)]
    if not isinstance(listed, list):
        raise Rejected("unreadable", "tool_calls is no list")
    calls = []
    for i, call in enumerate(listed):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Rejected("unreadable", f"a call without the name of a function, {str(call)[:60]!r}")
        calls.append((str(call.get("id") or f"#{before + i}"), function["name"], function.get("arguments", {})))
    return calls


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    raise Rejected("unreadable", "a message whose content is no text")
