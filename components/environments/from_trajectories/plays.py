"""Replaying actions in a world of their own, also in one where clock, order, locale and chance are others.

Commands run in the shell's sandbox and statements in the database tool, nowhere else. A *twist* changes what no
solution should depend on: the clock and the files' ages, the order in which directories and tables are read, the
locale, and the seed of ``random()``.
"""

from __future__ import annotations

import io
import os
import sqlite3
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from components.environments.from_trajectories.transcript import TOOLSETS, Action, Rejected
from components.environments.tool_loop import ToolError
from components.environments.tools.arithmetic import calculator
from components.environments.tools.database import NOW, DatabaseSession, authorise
from components.environments.tools.host import Broken
from components.environments.tools.keyvalue import KeyValueSession
from components.environments.tools.shell import Shell
from components.environments.tools.workspace import Workspace
from components.types import Message, Task

_MOST_S = 300  # for a replay
_DAY = 86_400
_THEN = 981_173_106  # 2001-02-03 04:05:06 UTC
_ANOTHER_TIME = "2001-02-03 04:05:06"
# A `date` that is asked for no particular time tells another one.
_CLOCK = f"""mkdir -p /tmp/.clock && printf '%s\\n' '#!/bin/sh' \\
'for a; do case $a in -d*|--date*|-r*|--ref*|-f*|--file*) exec /usr/bin/date "$@";; esac; done' \\
'exec /usr/bin/date -d @{_THEN} "$@"' > /tmp/.clock/date && \\
chmod 755 /tmp/.clock/date && PATH=/tmp/.clock:$PATH && export PATH TZ=Pacific/Kiritimati
"""


@dataclass(frozen=True, slots=True)
class Twist:
    """What is otherwise in a replay."""

    clock: bool = False
    order: bool = False
    locale: bool = False
    chance: bool = False


PLAIN = Twist()
EVERYTHING = Twist(True, True, True, True)
TWISTS = {
    "the time": Twist(clock=True),
    "the order of files or rows": Twist(order=True),
    "the locale": Twist(locale=True),
    "chance": Twist(chance=True),
}


@dataclass(frozen=True, slots=True)
class Played:
    """What a replay came to.

    Attributes:
        said, failed: of each action.
        states: before the first action and after each, by toolset.
        workspaces: the shell's likewise; empty without a shell.
    """

    said: tuple[str, ...]
    failed: tuple[bool, ...]
    states: tuple[dict[str, Any], ...]
    workspaces: tuple[Workspace, ...]


def play(
    actions: Sequence[Action],
    world: Mapping[str, Any],
    toolsets: Sequence[str],
    shell: Shell | None,
    twist: Twist = PLAIN,
    start: Workspace | None = None,
) -> Played:
    """Carry out actions from the beginning.

    Args:
        start: the shell's beginning, if not the world's files.

    Raises:
        Rejected: "bad_world", or "hangs".
        Broken: the sandbox does not work.
    """
    sessions = {name: _open(name, world, shell, twist, start) for name in toolsets}
    files = sessions.get("shell")
    states = [{name: session.state() for name, session in sessions.items()}]
    workspaces = [files.workspace] if files else []
    said, failed = [], []
    began = time.monotonic()
    try:
        for i, action in enumerate(actions):
            if time.monotonic() - began > _MOST_S:
                raise Rejected("hangs", f"its first {i} of {len(actions)} calls took more than {_MOST_S} s")
            text, wrong = _act(sessions, action)
            said.append(text)
            failed.append(wrong)
            # Only the toolset that was called can have changed.
            called = TOOLSETS.get(action.tool)
            states.append(states[-1] if called is None else {**states[-1], called: sessions[called].state()})
            if files:
                workspaces.append(files.workspace)
    finally:
        for session in sessions.values():
            session.close()
    return Played(tuple(said), tuple(failed), tuple(states), tuple(workspaces))


def _open(name: str, world: Mapping[str, Any], shell: Shell | None, twist: Twist, start: Workspace | None) -> Any:
    try:
        if name == "shell":
            assert shell is not None
            return _Files(shell, start or _aged(Workspace.of(world.get("files", {})), twist), twist)
        task = Task("other" if twist.chance else "env", (Message("user", ""),), None, "state", meta=world)
        return _Database(task, twist) if name == "database" else _Store(task)
    except (ValueError, UnicodeError, MemoryError, sqlite3.Error, sqlite3.Warning, tarfile.TarError) as error:
        raise Rejected("bad_world", str(error)[:200]) from None


def _act(sessions: Mapping[str, Any], action: Action) -> tuple[str, bool]:
    try:
        if action.tool == "calculator":
            return calculator(**action.arguments), False
        return sessions[TOOLSETS[action.tool]].act(action)
    except TimeoutError:
        raise Rejected("hangs", f"{action.text[:100]!r} does not end") from None
    except ToolError as error:
        return f"error: {error}", True
    except TypeError:
        given = ", ".join(action.arguments)[:60] or "nothing"
        raise Rejected("unreadable", f"{action.tool} cannot be called with {given}") from None


class _Files:
    def __init__(self, shell: Shell, workspace: Workspace, twist: Twist) -> None:
        self._shell, self.workspace, self._twist = shell, workspace, twist
        self._before = (_CLOCK if twist.clock else "") + (_LOCALE if twist.locale else "")

    def act(self, action: Action) -> tuple[str, bool]:
        begin = _reversed(self.workspace) if self._twist.order else self.workspace
        command = self._before + action.arguments["command"]
        try:
            after, said, code = self._shell.run(begin, command)
        except TimeoutError:  # on a crowded machine that need not be the command's doing
            after, said, code = self._shell.run(begin, command)
        self.workspace = after
        if code is None:
            said = f"{said}\nthe command was killed, or its files cannot be read".strip()
        return said, code != 0

    def state(self) -> dict[str, Any]:
        return {"files": self.workspace.files()}

    def close(self) -> None:
        pass


class _Database(DatabaseSession):
    def __init__(self, task: Task, twist: Twist) -> None:
        super().__init__(task, _ANOTHER_TIME if twist.clock else NOW)
        if twist.order:
            self._connection.set_authorizer(None)  # which forbids pragmas
            self._connection.execute("PRAGMA reverse_unordered_selects = ON")
            self._connection.set_authorizer(authorise)

    def act(self, action: Action) -> tuple[str, bool]:
        return self.query(**action.arguments), False

    def state(self) -> dict[str, Any]:
        """Likewise, without ending a transaction: of what it does nothing is there before it is committed."""
        if not self._connection.in_transaction:
            self._committed = super().state()
        return self._committed


class _Store(KeyValueSession):
    def act(self, action: Action) -> tuple[str, bool]:
        return getattr(self, action.tool)(**action.arguments), False


def _aged(workspace: Workspace, twist: Twist) -> Workspace:
    """Files of different ages, the first by name the newest."""
    return _rewritten(workspace, reverse=False, aged=True) if twist.clock else workspace


def _reversed(workspace: Workspace) -> Workspace:
    """The same files, made in the other order, which is the one in which many file systems list them."""
    return _rewritten(workspace, reverse=True, aged=False)


def _rewritten(workspace: Workspace, *, reverse: bool, aged: bool) -> Workspace:
    """The files in another order, or each a day older than the one before. Raises Broken."""
    try:
        return _repacked(workspace, reverse=reverse, aged=aged)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise Broken(f"the workspace cannot be read: {error}") from None


def _repacked(workspace: Workspace, *, reverse: bool, aged: bool) -> Workspace:
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(workspace.archive)) as old,
        tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        entries = old.getmembers()
        if any(entry.islnk() for entry in entries):  # must follow what they are links to
            reverse = False
        for i, entry in enumerate(reversed(entries) if reverse else entries):
            if aged:
                entry.mtime = int(entry.mtime) - i * _DAY
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    return replace(workspace, archive=buffer.getvalue())


def _other_locale() -> str:
    folder = "/usr/lib/locale"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return next((name for name in names if name not in ("C.utf8", "C.UTF-8", "locale-archive")), "POSIX")


_LOCALE = f"export LC_ALL={_other_locale()} LANG={_other_locale()}\n"
