"""Transcripts of a file or a folder, in any of the forms that are read; each form has its own module.

=============  ======================================================================================================
transcripts    JSON Lines as in the package's docstring
messages       JSON Lines of ``{"messages": […]}`` with tool calls and tool messages, as OpenAI's interfaces have them
rollouts       JSON Lines or Parquet of rollouts: ``rollouts/*.parquet`` of a stage ``rl``, ``answers.parquet`` of an
               evaluation; their worlds stand in the tasks
shell          plain text of a terminal: lines after a prompt (``$``, ``me@host:dir$``, ``sqlite>``) and what was
               answered; comments before the first prompt are the instruction. A file is one session
=============  ======================================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from components.environments.from_trajectories.calls import actions_of, with_root
from components.environments.from_trajectories.fitting import check_texts
from components.environments.from_trajectories.messages import from_messages
from components.environments.from_trajectories.rollouts import from_rollout
from components.environments.from_trajectories.sessions import from_session
from components.environments.from_trajectories.transcript import TOOLSETS, WORLDS, Action, Rejected, Transcript

T = TypeVar("T", str, int, bool)
Form = Literal["auto", "transcripts", "messages", "rollouts", "shell"]
FORMS = ("auto", "transcripts", "messages", "rollouts", "shell")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_READERS = {"messages": from_messages, "rollouts": from_rollout, "shell": from_session}
_MAX_LINE = 10 << 20
_KINDS: Mapping[type, str] = {str: "a text", int: "a whole number", bool: "true or false"}


class Unusable(ValueError):
    """There is nothing to read; the message names the file and the remedy."""


def read_transcripts(
    path: Path, form: Form = "auto", tasks: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Transcript]:
    """Every transcript; what is wrong with one is its ``problem``.

    Args:
        path: a file, or a folder of files.
        tasks: rows of tasks by id, for rollouts.

    Raises:
        Unusable: no such file, or none that could hold transcripts.
    """
    found: list[Transcript] = []
    for file in _files(path):
        for where, row in _rows(file):
            found.append(_transcript(where, row, form, tasks or {}, len(found)))
    if not found:
        raise Unusable(f"{path}: holds no transcript. Fix: JSON Lines, Parquet, or sessions as .txt, .log or .session")
    return found


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Unusable(f"{path}: no such file (working directory {Path.cwd()}). Fix: a file, or a folder of files")
    ends = (".jsonl", ".parquet", ".txt", ".log", ".session")
    return sorted(file for file in path.rglob("*") if file.suffix in ends and file.is_file())


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Objects of a file, each with its place; a text for a session and for a line that is no JSON."""
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq  # heavy, and only rollouts of a run need it

        try:
            rows = pq.read_table(file).to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's own are ValueErrors
            rows = [Rejected("unreadable", f"no Parquet that can be read: {str(error)[:100]}")]
        for number, row in enumerate(rows, 1):
            yield f"{file}:{number}", row
    elif file.suffix == ".jsonl":
        with file.open("rb") as lines:
            number = 0
            while line := lines.readline(_MAX_LINE + 1):
                number += 1
                if line.strip():
                    yield f"{file}:{number}", _parsed(line)
                while len(line) > _MAX_LINE and not line.endswith(b"\n"):  # the rest of one that is too long
                    line = lines.readline(_MAX_LINE + 1)
    else:
        yield str(file), {"session": file.read_bytes().decode("utf-8", errors="replace"), "id": file.stem}


def _parsed(line: bytes) -> Any:
    if len(line) > _MAX_LINE:
        return Rejected("unreadable", f"a line of more than {_MAX_LINE >> 20} MiB")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Rejected("unreadable", f"not JSON: {str(error)[:80]}")
    return value if isinstance(value, dict) else Rejected("unreadable", "a line that is no JSON object")


def _transcript(where: str, row: Any, form: Form, tasks: Mapping[str, Any], number: int) -> Transcript:
    if isinstance(row, Rejected):
        return Transcript(f"t{number:05d}", where, "", (), problem=(row.reason, row.detail))
    given = row.get("id", row.get("task_id"))
    name = _NAME.sub("-", str(given)).strip("-.")[:60] if given is not None else ""
    instruction, actions = "", []
    try:
        read = _READERS.get(_form_of(row) if form == "auto" else form, _from_row)
        instruction, actions, world, finished = read(row, tasks)
        _check_end(row, actions, finished)
        world = _world(row) or _world(world)
        if not isinstance(instruction, str) or not any(letter.isalpha() for letter in instruction):
            raise Rejected("no_instruction", f"the instruction is {str(instruction)[:40]!r}")
        check_texts(instruction, actions, world)
        actions = with_root(actions, _optional(row, "root", str))
        toolsets = {TOOLSETS[action.tool] for action in actions if action.tool in TOOLSETS}
        if "shell" in toolsets and len(toolsets) > 1:
            raise Rejected(
                "unknown_tool", "both a shell and a database or store: no environment here has them together"
            )
        unknown = {key: value for key, value in world.items() if key not in {WORLDS[t] for t in toolsets}}
        world = {key: value for key, value in world.items() if key not in unknown}
        return Transcript(name or f"t{number:05d}", where, " ".join(instruction.split()), tuple(actions), world)
    except Rejected as problem:
        text = instruction if isinstance(instruction, str) else ""
        return Transcript(
            name or f"t{number:05d}", where, text, tuple(actions), problem=(problem.reason, problem.detail)
        )
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        detail = f"a row of another shape than this form has ({type(error).__name__}: {str(error)[:100]})"
        return Transcript(name or f"t{number:05d}", where, "", (), problem=("unreadable", detail))


def _form_of(row: Mapping[str, Any]) -> str:
    if "session" in row:
        return "shell"
    if "response" in row:
        return "rollouts"
    return "messages" if "messages" in row else "transcripts"


def _from_row(row: Mapping[str, Any], tasks: Mapping[str, Any]) -> tuple[str, list[Action], dict[str, Any], bool]:
    actions: list[Action] = []
    listed = row.get("actions")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise Rejected("unreadable", "actions is no list of objects")
    for entry in listed:
        names = [key for key in entry if key not in ("output", "exit_code")]
        if len(names) != 1:
            raise Rejected("unreadable", f"an action names one tool, this one {', '.join(names)[:60] or 'none'}")
        output, code = _optional(entry, "output", str), _optional(entry, "exit_code", int)
        actions += actions_of(names[0], entry[names[0]], output, code)
    return row.get("instruction", row.get("prompt", "")), actions, {}, row.get("finished", True) is not False


def _optional(row: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """A value that may be missing. Raises Rejected: it is of another kind."""
    value = row.get(name)
    if value is not None and not isinstance(value, kind):
        raise Rejected("unreadable", f"{name} is {str(value)[:40]!r}, not {_KINDS[kind]}")
    return value


def _check_end(row: Mapping[str, Any], actions: Sequence[Action], finished: bool) -> None:
    """Whether the recording goes to its end, and that was a good one."""
    success, done = _optional(row, "success", bool), row.get("correct")
    if success is False or (isinstance(done, int | float) and done < 1):
        raise Rejected("unsuccessful", "it is marked as a failure")
    if not actions:
        raise Rejected("no_actions", "no tool was called")
    silent = actions[-1].output is None and any(action.output is not None for action in actions)
    if not finished or _optional(row, "finished", bool) is False:
        raise Rejected("truncated", "the recording does not come to an end")
    if silent and actions[-1].tool != "query":
        raise Rejected("truncated", "the last call has no result")


def _world(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the row itself says about the beginning. Raises Rejected."""
    world: dict[str, Any] = {}
    for name, kind in (("files", dict), ("database", str | list), ("store", dict)):
        value = row.get(name)
        if value is None:
            continue
        if not isinstance(value, kind):
            raise Rejected("bad_world", f"{name} is {type(value).__name__}")
        texts = value.values() if isinstance(value, dict) else value
        if not all(isinstance(text, str) for text in texts):
            raise Rejected("bad_world", f"{name}: every value is a text")
        world[name] = ";\n".join(value) if isinstance(value, list) else value
    return world
