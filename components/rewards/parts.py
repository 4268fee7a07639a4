"""Which part of a response a model judges: all of it, or what it says in the end. Linear time."""

from __future__ import annotations

from typing import Literal

from components.rewards.response import take_apart

Part = Literal["response", "answer"]
_OPEN, _CLOSE = "<think>", "</think>"


def final_text(response: str) -> str:
    """What the response says in the end: its tagged answer, else all that follows the thinking, else all of it.

    A thought that was opened and never closed is followed by nothing.
    """
    answer = take_apart(response).answer
    if answer is not None:
        return answer
    _, closed, after = response.rpartition(_CLOSE)
    return after.strip() if closed or _OPEN not in response else ""


def part_of(response: str, part: Part) -> str:
    """The response as a reward model reads it; for "answer" with an empty thought in place of its reasoning.

    The tags and the white space behind the first one stay: they are the template's, and a response without them could
    not follow its prompt.
    """
    if part == "response":
        return response
    _, opened, inside = response.partition(_OPEN)
    thought, closed, after = inside.rpartition(_CLOSE)
    if not (opened and closed):
        return response
    return _OPEN + thought[: len(thought) - len(thought.lstrip())] + _CLOSE + after
