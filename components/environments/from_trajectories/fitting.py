"""Texts that no file, no command and no prompt can hold, and transcripts too long to be replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from components.environments.from_trajectories.transcript import Action, Rejected

MAX_INSTRUCTION = 8_000  # characters
MAX_CALL = 60_000  # bytes of a call's arguments: Linux takes 128 KiB for one
MAX_CALLS = 300


def check_texts(instruction: str, actions: Sequence[Action], world: Mapping[str, Any]) -> None:
    """Raises Rejected: "unreadable" or "too_long"; names the text."""
    for where, text in _texts(instruction, actions, world):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Rejected("unreadable", f"{where} has half of a surrogate pair, which is no text") from None
    for i, action in enumerate(actions):
        if "\0" in action.text:
            raise Rejected("unreadable", f"action {i + 1} has a NUL, which no command can")
        if (size := len(action.text.encode())) > MAX_CALL:
            raise Rejected("too_long", f"action {i + 1} has {size:,} bytes, more than {MAX_CALL:,}")
    if len(instruction) > MAX_INSTRUCTION:
        raise Rejected("too_long", f"the instruction has {len(instruction):,} letters, more than {MAX_INSTRUCTION:,}")
    if len(actions) > MAX_CALLS:
        raise Rejected("too_long", f"{len(actions):,} calls, more than {MAX_CALLS}")


def _texts(instruction: str, actions: Sequence[Action], world: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "the instruction", instruction
    for i, action in enumerate(actions):
        yield f"action {i + 1}", action.text
    for name, value in world.items():
        for text in (value,) if isinstance(value, str) else (part for item in value.items() for part in item):
            yield name, text
