"""Calls as agents of many kinds make them, read as calls of the tools that environments here have."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.from_trajectories.transcript import Action, Rejected

_SHELL = (
    "shell bash sh terminal exec execute execute_command execute_bash run run_command run_shell "
    "run_shell_command run_terminal_cmd run_in_terminal cmd"
).split()
_QUERY = "query sql sqlite execute_sql run_sql run_query sql_query read_query write_query execute_query".split()
_STORE = {"get": ("key",), "put": ("key", "value"), "delete": ("key",), "calculator": ("expression",)}
_ENDING = ["finish", "submit", "done", "task_complete", "complete", "attempt_completion", "think", "final_answer"]
_COMMAND = ("command", "cmd", "script", "code", "input", "commands")
_STATEMENT = ("sql", "query", "statement", "command")
_EXIT = re.compile(r"\n?(?:exit code|\[exit code:|Exit code:) ?(\d{1,3})\]?\s*\Z")
WORKSPACE = "/workspace"


def actions_of(name: str, arguments: Any, output: str | None, code: int | None = None) -> list[Action]:
    """The actions of one recorded call; none for one that only says that the work is done.

    Raises:
        Rejected: a tool that is not known here, or arguments that it does not take.
    """
    short = re.sub(r"\A.*[.:/]", "", name).lower()
    if short in _ENDING:
        return []
    given = _arguments(name, arguments)
    output, failed = _outcome(output, code)
    if short in _SHELL:
        return [Action("shell", {"command": _command(_value(name, given, _COMMAND))}, output, failed)]
    if short in _QUERY:
        return _statements(_text(_value(name, given, _STATEMENT)), output, failed)
    if short in _STORE:
        return [Action(short, _named(short, arguments, given), output, failed)]
    if (command := _file_command(short, given)) is not None:
        return [Action("shell", {"command": command}, output, failed)]
    raise Rejected("unknown_tool", f"tool {name[:60]!r}")


def with_root(actions: Sequence[Action], root: str | None) -> list[Action]:
    """Paths below the recorded working directory as paths of the workspace.

    Without a ``root`` it is what a first ``pwd`` said.
    """
    if root is None:
        spoken = (a.output or "" for a in actions if a.tool == "shell" and a.text.strip() == "pwd")
        root = next((said.strip() for said in spoken), None)
    if not root or not root.startswith("/") or len(root.rstrip("/")) < 2 or "\n" in root:
        return list(actions)
    pattern = re.compile(re.escape(posixpath.normpath(root)) + r"(?![\w.-])")
    return [
        Action(
            a.tool,
            {
                key: pattern.sub(WORKSPACE, value) if isinstance(value, str) else value
                for key, value in a.arguments.items()
            },
            None if a.output is None else pattern.sub(WORKSPACE, a.output),
            a.failed,
        )
        if a.tool == "shell"
        else a
        for a in actions
    ]


def split_statements(sql: str) -> list[str]:
    """Statements of a script; semicolons in strings, comments and triggers end none."""
    found, start = [], 0
    for end in (i + 1 for i, letter in enumerate(sql) if letter == ";"):
        if sqlite3.complete_statement(sql[start:end]):
            found.append(sql[start:end].strip().rstrip(";").strip())
            start = end
    return [statement for statement in [*found, sql[start:].strip()] if statement]


def from_command_line(action: Action) -> list[Action] | None:
    """``sqlite3 FILE 'SQL'`` as queries; None for any other command."""
    try:
        words = shlex.split(action.text)
    except ValueError:
        return None
    plain = [word for word in words[1:] if not word.startswith("-")]
    if not words or words[0] != "sqlite3" or len(plain) != 2 or any(mark in words for mark in ("|", ">", "<", "&&")):
        return None
    return _statements(plain[1], action.output, action.failed)


def _statements(sql: str, output: str | None, failed: bool | None) -> list[Action]:
    if sql.strip().startswith("."):
        name, *words = sql.split()
        if name != ".schema":
            return []
        only = f" AND name = '{words[0]}'" if words and words[0].isidentifier() else ""
        sql = f"SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL{only}"
    statements = split_statements(sql) or [sql]
    actions = [Action("query", {"sql": text}, None, None) for text in statements[:-1]]
    # What several statements said together cannot be told apart.
    alone = output if len(statements) == 1 else None
    return [*actions, Action("query", {"sql": statements[-1]}, alone, failed)]


def _arguments(name: str, arguments: Any) -> Mapping[str, Any]:
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise Rejected("truncated", f"the arguments of {name[:60]!r} are not JSON") from None
    if isinstance(arguments, str | list):
        return {"command": arguments}
    if not isinstance(arguments, Mapping):
        raise Rejected("unreadable", f"the arguments of {name[:60]!r} are no object")
    return arguments


def _value(name: str, given: Mapping[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        if key in given:
            return given[key]
    raise Rejected(
        "unknown_tool", f"tool {name[:60]!r} has arguments {', '.join(map(str, given))[:80] or 'of no name'}"
    )


def _named(tool: str, arguments: Any, given: Mapping[str, Any]) -> dict[str, str]:
    """Arguments by name; a text stands for all of them."""
    names = _STORE[tool]
    if isinstance(arguments, str) and not arguments.lstrip().startswith("{"):
        return dict(
            zip(names, arguments.split(maxsplit=len(names) - 1) if len(names) > 1 else [arguments], strict=False)
        )
    return {key: str(value) for key, value in given.items()}


def _command(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        if len(value) == 3 and value[0].rsplit("/")[-1] in ("bash", "sh") and value[1] in ("-c", "-lc"):
            return value[2]
        return shlex.join(value)
    return _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Rejected("unreadable", "a call without a text to run")
    return value


def _file_command(name: str, given: Mapping[str, Any]) -> str | None:
    """Reading and writing whole files as commands."""
    path = given.get("path", given.get("file_path", given.get("filename")))
    if not isinstance(path, str):
        return None
    if name in ("read_file", "view_file", "cat"):
        return f"cat {shlex.quote(path)}"
    if name in ("list_dir", "list_directory", "ls"):
        return f"ls {shlex.quote(path)}"
    content = given.get("content", given.get("contents", given.get("text")))
    if name in ("write_file", "create_file", "write") and isinstance(content, str):
        folder = posixpath.dirname(path)
        before = f"mkdir -p {shlex.quote(folder)} && " if folder else ""
        return f"{before}printf %s {shlex.quote(content)} > {shlex.quote(path)}"
    return None


def _outcome(output: str | None, code: int | None) -> tuple[str | None, bool | None]:
    """What was said without its remark on the exit code, and whether that is a failure."""
    if output is None:
        return None, None if code is None else code != 0
    found = _EXIT.search(output)
    if found:
        output, code = output[: found.start()], int(found[1]) if code is None else code
    output = output.rstrip("\n")
    if output == "(no output)":
        output = ""
    if code is None and output.lower().startswith(("error:", "parse error", "runtime error")):
        return output, True
    return output, None if code is None else code != 0
