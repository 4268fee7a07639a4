"""Whether a replay says what was recorded: up to what differs from machine to machine, and from tool to tool."""

from __future__ import annotations

import re
from collections.abc import Sequence

from components.environments.from_trajectories.plays import Played
from components.environments.from_trajectories.transcript import Action, Rejected
from components.environments.from_trajectories.words import program, simple_commands

_CELL = re.compile(r"[^\s|+─│┌┐└┘├┤┬┴┼╭╮╰╯-][^\s|─│┌┐└┘├┤┬┴┼╭╮╰╯]*")
_VARIES = frozenset(
    "stat date ps df du id whoami hostname uname env printenv time uptime free top tty who w pwd nproc".split()
)


def compare(actions: Sequence[Action], played: Played, given: bool) -> None:
    """Raise Rejected unless a replay says what was recorded, and ends well.

    Args:
        given: the beginning was recorded, not reconstructed.
    """
    for i, (action, said, failed) in enumerate(zip(actions, played.said, played.failed, strict=True)):
        if (why := _differs(action, said, failed)) is None:
            continue
        if failed and "/" in (place := _absolute(action.text, said)):
            raise Rejected("outside", f"{place} lies outside of the workspace")
        detail = f"action {i + 1}, {action.text[:60]!r}: {why}"
        raise Rejected("not_reproduced" if given else "no_initial_state", detail)
    if played.failed[-1]:
        raise Rejected("failed_at_end", f"{actions[-1].text[:60]!r} says {played.said[-1][-80:]!r}")


def _differs(action: Action, said: str, failed: bool) -> str | None:
    """What a replay says otherwise than the recording."""
    if action.failed is not None and action.failed != failed:
        return f"it fails, {said[-100:]!r}" if failed else "it failed, and does not now"
    if action.output is None:
        return f"it fails, {said[-100:]!r}" if failed and action.failed is None else None
    if action.failed and failed:
        return None  # programs of other versions complain in other words
    if action.tool == "query":
        if (said.startswith("ok, ") and not failed) or "sqlite_schema" in action.text or "sqlite_master" in action.text:
            return None
        alike = _same_cells(action.output, said)
    else:
        alike = _varies(action) or _same_lines(action.output, said)
    return None if alike else f"recorded {action.output[:60]!r}, now {said[:60]!r}"


def _same_lines(recorded: str, said: str) -> bool:
    a, b = ([line.rstrip() for line in text.strip("\n").split("\n")] for text in (recorded, said))
    if recorded.endswith("…"):  # cut
        return said.startswith(recorded[:-1])
    return a == b or sorted(a) == sorted(b)


def _same_cells(recorded: str, said: str) -> bool:
    """The same cells, with or without the columns' names, in whatever frame."""
    if recorded.endswith("…"):
        return said.startswith(recorded[:-1])
    mine = sorted(_CELL.findall(recorded))
    return mine == sorted(_CELL.findall(said)) or mine == sorted(_CELL.findall(said.partition("\n")[2]))


def _varies(action: Action) -> bool:
    """Commands that speak of times, owners and machines."""
    try:
        parts = simple_commands(action.text) if action.tool == "shell" else []
    except ValueError:
        return False
    return any(
        program(words) in _VARIES or (program(words) == "ls" and any("l" in w for w in words[1:] if w.startswith("-")))
        for words in parts
    )


def _absolute(command: str, said: str) -> str:
    """A path from the root that the command names and the shell complains of."""
    return next(
        (w for w in re.findall(r"(?<![\w.])/[\w./-]+", command) if w in said and not w.startswith("/workspace")), ""
    )
