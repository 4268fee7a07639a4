"""Format rewards: the shape of a response, and of the tool calls in it. Linear time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from components.rewards.response import TAGS, take_apart
from components.types import Rollout, Task

MAX_CALL = 20_000  # characters of one tool call


def think_then_answer(task: Task, rollout: Rollout) -> float:
    """1.0 if the response is exactly one thought, then one answer, and ended by itself; else 0.0.

    The whole response counts, template prefill included. Source: arXiv:2501.12948 §2.2.2.
    """
    return float(rollout.finish == "stop" and take_apart(rollout.response).well_formed)


class ToolCalls:
    """Share of the tool calls in a response that are well-formed, in [0, 1].

    A call is the text between ``call``. With ``json`` it must be one JSON object with a "name" (a string) and
    "arguments" (an object) and no key twice; else it must only be closed. A tag without its partner is a malformed
    call. What stands between ``wrapper`` is the environment's and is not read.

    Args:
        tools: name → the arguments that a call of that tool must have; other names are malformed. None for any.
        nothing: value of a response without a call.
    """

    def __init__(
        self,
        *,
        call: Sequence[str] = ("<tool>", "</tool>"),
        json: bool = True,
        tools: Mapping[str, Sequence[str]] | None = None,
        nothing: float = 1.0,
        wrapper: Sequence[str] = ("<result>", "</result>"),
    ) -> None:
        if not 0 <= nothing <= 1:
            raise ValueError(f"tool call format: nothing must lie in [0, 1] (got {nothing})")
        self.call, self.wrapper = (call[0], call[1]), (wrapper[0], wrapper[1])
        self.json, self.tools, self.nothing = json, tools, nothing

    def __call__(self, task: Task, rollout: Rollout) -> float:
        right, wrong = self.count(rollout.response)
        return right / (right + wrong) if right + wrong else self.nothing

    def count(self, response: str) -> tuple[int, int]:
        """Well-formed and malformed calls."""
        text, _ = without_spans(response, *self.wrapper)
        bodies, stray = _bodies(text, *self.call)
        good = sum(not self.json or self._is_call(body) for body in bodies)
        return good, len(bodies) - good + stray

    def _is_call(self, body: str) -> bool:
        call = _object(body)
        if call is None or not isinstance(call.get("name"), str) or not isinstance(call.get("arguments"), dict):
            return False
        if self.tools is None:
            return True
        needed = self.tools.get(call["name"])
        return needed is not None and set(needed) <= set(call["arguments"])


def violations(rollout: Rollout, calls: ToolCalls) -> int:
    """How many rules of form a response breaks.

    One for each: a tag that does not stand exactly once, text outside the tags (or an empty thought or answer), being
    cut off, a malformed tool call, a result that no tool gave.
    """
    text, results = without_spans(rollout.response, *calls.wrapper)
    tags = sum(text.count(tag) != 1 for tag in TAGS)
    shape = int(not tags and not take_apart(text).well_formed)
    made_up = max(0, results - int(rollout.info.get("tool_calls", 0)))
    return tags + shape + int(rollout.finish != "stop") + calls.count(rollout.response)[1] + made_up


def without_spans(text: str, opening: str, closing: str) -> tuple[str, int]:
    """The text with each ``opening…closing`` replaced by a line break, and how many there were."""
    kept, count, at = [], 0, 0
    while (begin := text.find(opening, at)) >= 0:
        kept.append(text[at:begin])
        count += 1
        end = text.find(closing, begin + len(opening))
        if end < 0:
            return "\n".join(kept), count
        at = end + len(closing)
    kept.append(text[at:])
    return "\n".join(kept), count


def _bodies(text: str, opening: str, closing: str) -> tuple[list[str], int]:
    """Texts between a tag and the next closing one, and how many tags have no partner."""
    bodies, stray, begin = [], 0, -1
    for is_opening, at in _tags(text, opening, closing):
        if is_opening:
            stray += begin >= 0
            begin = at + len(opening)
        elif begin >= 0:
            bodies.append(text[begin:at])
            begin = -1
        else:
            stray += 1
    return bodies, stray + (begin >= 0)


def _tags(text: str, opening: str, closing: str) -> Iterator[tuple[bool, int]]:
    """Both tags in order: (is it the opening one, where)."""
    ahead = [text.find(opening), text.find(closing)]
    while max(ahead) >= 0:
        first = min(at for at in ahead if at >= 0)
        which = ahead.index(first)
        yield which == 0, first
        tag = (opening, closing)[which]
        ahead[which] = text.find(tag, first + len(tag))


def _object(text: str) -> dict[str, Any] | None:
    if len(text) > MAX_CALL:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refused)
    except (ValueError, RecursionError):  # not JSON, NaN, a number of 5,000 digits; nested a thousand deep
        return None
    return value if isinstance(value, dict) else None


def _without_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
