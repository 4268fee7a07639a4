"""A recorded episode, whatever it was recorded as, and the reasons for which one does not become an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Reason = Literal[
    "unreadable",
    "too_long",
    "no_instruction",
    "several_instructions",
    "no_actions",
    "unknown_tool",
    "truncated",
    "unsuccessful",
    "outside",
    "bad_world",
    "no_initial_state",
    "not_reproduced",
    "hangs",
    "failed_at_end",
    "no_effect",
    "unstable",
    "unverifiable",
    "unmet",
    "trivial",
    "weak",
    "duplicate",
    "near_duplicate",
    "contradictory",
    "too_easy",
    "too_hard",
]

REASONS: Mapping[Reason, str] = {
    "unreadable": "it does not have the form of a transcript",
    "too_long": "an instruction, a call or a recording that is longer than any episode",
    "no_instruction": "nothing says what was to be done",
    "several_instructions": "the user spoke again after the work had begun",
    "no_actions": "no tool was called",
    "unknown_tool": "a tool that no environment here has",
    "truncated": "the recording ends in the middle",
    "unsuccessful": "it was recorded as a failure",
    "outside": "it needs the network or files outside of the workspace",
    "bad_world": "the recorded beginning cannot be set up",
    "no_initial_state": "too little of the beginning is known to replay it",
    "not_reproduced": "its replay says something else than was recorded",
    "hangs": "a command does not end",
    "failed_at_end": "its last command fails",
    "no_effect": "the end is the beginning",
    "unstable": "the end depends on time, order, locale or chance",
    "unverifiable": "what it changed cannot be looked at",
    "unmet": "the instruction names a file that neither the beginning nor the end has",
    "trivial": "it can be solved without looking",
    "weak": "a broken solution passes",
    "duplicate": "the same world and instruction as another",
    "near_duplicate": "nearly the same as another",
    "contradictory": "solutions of the same task end differently, none in the majority",
    "too_easy": "the policy nearly always solves it",
    "too_hard": "the policy never solves it",
}


class Rejected(Exception):
    """This transcript becomes no environment."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Action:
    """One call.

    Attributes:
        tool: "shell", "query", "get", "put", "delete" or "calculator".
        arguments: of the tool.
        output: what it answered, None if that was not recorded.
        failed: whether it failed, None if that was not recorded.
    """

    tool: str
    arguments: Mapping[str, Any]
    output: str | None = None
    failed: bool | None = None

    @property
    def text(self) -> str:
        """The command, or the arguments one after the other."""
        return " ".join(str(value) for value in self.arguments.values())


@dataclass(frozen=True, slots=True)
class Transcript:
    """A recorded episode.

    Attributes:
        where: file and line.
        world: what tools begin with, by its name in a task's meta ("files", "database", "store"); empty if the
            recording does not say.
        problem: why it cannot be used, found while reading.
    """

    id: str
    where: str
    instruction: str
    actions: tuple[Action, ...]
    world: Mapping[str, Any] = field(default_factory=dict)
    problem: tuple[Reason, str] | None = None


TOOLSETS = {"shell": "shell", "query": "database", "get": "store", "put": "store", "delete": "store"}  # tool → toolset
WORLDS = {"shell": "files", "database": "database", "store": "store"}  # toolset → name in a task's meta
OFFERED = {"shell": ("shell",), "database": ("query",), "store": ("get", "put", "delete")}
