"""Plain text of a terminal: prompts, what was typed after them, and what came back."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from components.environments.from_trajectories.calls import actions_of, from_command_line
from components.environments.from_trajectories.transcript import Action, Rejected
from components.environments.from_trajectories.words import unfinished

# "$ ls", "me@host:~/dir$ ls", "(venv) me@host dir % ls", "sqlite> SELECT 1;"
_PROMPT = re.compile(
    r"(?:\([\w.-]{1,40}\) )?(?:[\w.-]{1,40}@[\w.-]{1,60}[^\n$#%]{0,200})?[$%](?: (.*))?|sqlite>(?: (.*))?"
)
_ROOT_PROMPT = re.compile(r"[\w.-]{1,40}@[\w.-]{1,60}[^\n$#%]{0,200}#(?: (.*))?")
_MORE = re.compile(r"(?:>| *\.\.\.>)(?: (.*))?")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07|\r")


def from_session(row: Mapping[str, Any], tasks: Mapping[str, Any]) -> tuple[str, list[Action], dict[str, Any], bool]:
    """(instruction, actions, world, whether it came to its end): a command that lacks its end says that it did not.

    Raises:
        Rejected: no prompt in it.
    """
    text = row["session"]
    lines = _ESCAPES.sub("", text).split("\n")
    spoken: list[str] = [row["instruction"]] if isinstance(row.get("instruction"), str) else []
    typed: list[tuple[bool, list[str], list[str]]] = []  # (SQL, lines of the command, lines that came back)
    prompts = 0
    for line in lines:
        asked = _asked(line)
        if asked is not None:
            prompts += 1
            sql, command = asked
            if command.startswith("#"):
                spoken += [command.lstrip("# ")] if not typed else []
            elif command.strip():
                typed.append((sql, [command], []))
        elif not prompts:
            if line.startswith("#"):
                spoken.append(line.lstrip("# "))
        elif typed:
            sql, command_lines, said = typed[-1]
            more = _MORE.fullmatch(line)
            if more and not said and _open(sql, command_lines):
                command_lines.append(more[1] or "")
            else:
                said.append(line)
    if not prompts:
        raise Rejected("unreadable", "a text without a prompt")
    actions: list[Action] = []
    finished = True
    for sql, command_lines, said in typed:
        command, output = "\n".join(command_lines), "\n".join(said).rstrip("\n")
        if command.strip() in ("exit", "logout", ".quit", ".exit"):
            break
        if _open(sql, command_lines):
            finished = False
            break
        actions += actions_of("query" if sql else "shell", command, output)
    return " ".join(spoken), _as_database(actions), {}, finished


def _asked(line: str) -> tuple[bool, str] | None:
    found = _PROMPT.fullmatch(line) or _ROOT_PROMPT.fullmatch(line)
    if found is None:
        return None
    return line.startswith("sqlite>"), next((group for group in found.groups() if group is not None), "")


def _open(sql: bool, lines: list[str]) -> bool:
    text = "\n".join(lines)
    if sql:
        return not (text.startswith(".") or sqlite3.complete_statement(text))
    return unfinished(text)


def _as_database(actions: list[Action]) -> list[Action]:
    """A session that does nothing but call ``sqlite3`` is one of a database."""
    if not actions or any(action.tool != "shell" for action in actions):
        return actions
    parts = [from_command_line(action) for action in actions]
    if any(part is None for part in parts):
        return actions
    return [action for part in parts if part is not None for action in part]
