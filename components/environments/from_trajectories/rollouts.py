"""Rollouts of this project's own stages: the calls stand in the response, the world in the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.environments.from_trajectories.calls import actions_of
from components.environments.from_trajectories.transcript import Action, Rejected
from components.environments.tools.formats import Hermes, Malformed, Tags

_TAGS = Tags()


def from_rollout(row: Mapping[str, Any], tasks: Mapping[str, Any]) -> tuple[str, list[Action], dict[str, Any], bool]:
    """(instruction, actions, world, whether it ended by itself).

    A reward term ``term.completion`` below 1 says that it failed.

    Raises:
        Rejected: nothing that could be replayed, or a rollout that was judged a failure.
    """
    task = row.get("task") or tasks.get(str(row.get("task_id"))) or {}
    completed, response = row.get("term.completion"), row["response"]
    if (
        not isinstance(task, Mapping)
        or not isinstance(task.get("meta") or {}, Mapping)
        or not isinstance(response, str)
    ):
        raise Rejected("unreadable", "a rollout has a response, which is a text, and a task with its meta")
    if completed is not None and not isinstance(completed, int | float):
        raise Rejected("unreadable", f"its completion is {str(completed)[:40]!r}, not a number")
    if completed is not None and completed < 1:
        raise Rejected("unsuccessful", f"its completion is {completed:g}")
    actions = _tagged(response) if _TAGS.call[0] in response else _in_json(response)
    meta = task.get("meta") or {}
    world = {name: meta[name] for name in ("files", "database", "store") if name in meta}
    turns = task.get("messages") or []
    said = [turn.get("content") for turn in turns if isinstance(turn, Mapping) and turn.get("role") == "user"]
    prompt: Any = row.get("prompt") or (said[-1] if said else "")
    return prompt, actions, world, row.get("finish", "stop") == "stop"


def _tagged(response: str) -> list[Action]:
    """``<tool>name arguments</tool><result>…</result>``, one after the other."""
    actions: list[Action] = []
    opening, closing = _TAGS.call
    begin, end = _TAGS.wrapper
    at = 0
    while (start := response.find(opening, at)) >= 0:
        stop = response.find(closing, start)
        if stop < 0:
            raise Rejected("truncated", "a call that is cut off")
        name, _, arguments = response[start + len(opening) : stop].strip().partition(" ")
        at, said = stop + len(closing), None
        if response.startswith(begin, at):
            until = response.find(end, at)
            said = response[at + len(begin) : until if until >= 0 else len(response)]
            at = until + len(end) if until >= 0 else len(response)
        actions += actions_of(name, arguments, said)
    return actions


def _in_json(response: str) -> list[Action]:
    """``<tool_call>{…}</tool_call>``; results are kept where they stand in ``<tool_response>`` tags."""
    calls = Hermes().calls("<think></think>" + response.replace("</think>", ""))
    if any(isinstance(call, Malformed) for call in calls):
        raise Rejected("truncated", "a call that is cut off")
    said = [part.partition("</tool_response>")[0].strip("\n") for part in response.split("<tool_response>")[1:]]
    results = said if len(said) == len(calls) else [None] * len(calls)
    return [
        action
        for call, result in zip(calls, results, strict=True)
        if not isinstance(call, Malformed)
        for action in actions_of(call.name, call.arguments, result)
    ]
