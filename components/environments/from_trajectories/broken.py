"""Solutions that must not pass: a step left out, another argument, and what anyone would try blindly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from components.environments.from_trajectories.transcript import Action

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w.-]{2,}")
_KEYWORDS = frozenset(
    "select insert update delete from into where values set table create drop order group having limit join and not "
    "null left inner distinct integer text real primary key exists then else done for while mkdir echo printf sort "
    "grep sed awk cat head tail cut find uniq xargs touch print".split()
)


def left_out(actions: Sequence[Action], effective: Sequence[int]) -> Iterator[tuple[int, list[Action]]]:
    """(place from which it differs, actions) without the last, and without the first step that had an effect."""
    for place in dict.fromkeys((effective[-1], effective[0])):
        yield place, [*actions[:place], *actions[place + 1 :]]


def corrupted(actions: Sequence[Action], effective: Sequence[int]) -> Iterator[tuple[int, list[Action]]]:
    """Likewise with one argument of the last step that had an effect made another: a number plus 1, a word longer."""
    place = effective[-1]
    for action in _corruptions(actions[place]):
        yield place, [*actions[:place], action, *actions[place + 1 :]]


def blind(before: Mapping[str, Any], instruction: str) -> dict[str, dict[str, Any]]:
    """Ends that need no look at the task: nothing done, everything removed, the named files made empty."""
    ends: dict[str, dict[str, Any]] = {"doing nothing": dict(before)}
    if "shell" in before:
        files = before["shell"]["files"]
        named = {word.strip(".,;:'\"`()") for word in instruction.split() if "." in word or "/" in word}
        ends["removing everything"] = {**before, "shell": {"files": {}}}
        made = {**{path: "" for path in named if path}, **files}
        ends["making empty files"] = {**before, "shell": {"files": made}}
    if "database" in before:
        tables = before["database"]
        ends["removing all rows"] = {**before, "database": {k: {**t, "rows": []} for k, t in tables.items()}}
        ends["removing all tables"] = {**before, "database": {}}
    if "store" in before:
        ends["removing all keys"] = {**before, "store": {}}
    return ends


def _corruptions(action: Action) -> Iterator[Action]:
    """From the end of each argument, the last argument first."""
    for name, value in reversed(list(action.arguments.items())):
        if not isinstance(value, str):
            continue
        spots = [(found, str(int(found[0]) + 1)) for found in _NUMBER.finditer(value) if len(found[0]) < 18]
        spots += [(f, f[0] + "x") for f in _WORD.finditer(value) if f.start() and f[0].lower() not in _KEYWORDS]
        if not spots and value:
            yield replace(action, arguments={**action.arguments, name: value + "x"})
        for found, other in sorted(spots, key=lambda spot: -spot[0].start()):
            text = value[: found.start()] + other + value[found.end() :]
            yield replace(action, arguments={**action.arguments, name: text})
