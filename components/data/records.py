"""One row of the user's data: columns mapped to fields, every value checked, every problem told with its place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from components.data.corpus import Problems, shown
from components.data.general import task_id
from components.data.verify import final_answer
from components.types import Message, Task

FIELDS = ("id", "prompt", "messages", "system", "answer", "trace", "chosen", "rejected", "family", "level")
NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Record:
    """One checked row."""

    where: str
    task: Task
    trace: str | None
    chosen: str | None
    rejected: str | None


def read_record(
    where: str,
    row: Mapping[str, Any],
    problems: Problems,
    *,
    columns: Mapping[str, str],
    verifier: str,
    answer_after: str | None,
    family: str,
) -> Record | None:
    """Map and check one row (settings as in `components.data.tables.Table`); None if it has problems."""
    before = len(problems.lines)
    cell = Cell(where, row, columns, problems)
    messages = _messages(cell)
    trace = cell.text("trace")
    answer = cell.text("answer", numbers=True)
    if answer is not None and answer_after is not None:
        worked, marker, answer = answer.rpartition(answer_after)
        if not marker:
            problem = f"no {answer_after!r} in it (got {shown(answer)})"
            cell.problem("answer", problem, "unset answer_after or repair the row")
        trace, answer = trace or worked.strip() or None, answer.strip()
    if answer is not None and not answer.strip():
        cell.problem("answer", 'empty, it can never score (got "")', "give the gold answer, or null")
    if answer is not None and len(answer) > 2000:
        cell.problem("answer", f"{len(answer)} characters, the verifier refuses more than 2000", "shorten it")
    if trace is not None and "<answer>" in trace and final_answer(trace.strip()) is None:
        problem = f"tags out of order (got {shown(trace)})"
        cell.problem("trace", problem, "<think>…</think><answer>…</answer>, each once, or no tags at all")
    chosen, rejected = cell.text("chosen"), cell.text("rejected")
    if (chosen is None) != (rejected is None):
        cell.problem("chosen" if chosen is None else "rejected", "missing beside the other (got null)", "give both")
    family = cell.name("family") or family
    level = cell.level()
    identity = cell.name("id")
    if len(problems.lines) > before or messages is None:
        return None
    prompt = " ".join(message.content for message in messages)
    task = Task(
        id=identity or task_id(family[:40], level, prompt),
        messages=messages,
        answer=answer,
        verifier=verifier if answer is not None else "open",
        family=family,
        level=level,
        kind="reasoning" if answer is not None else "general",
    )
    return Record(where, task, trace, chosen, rejected)


class Seen:
    """Refuses ids used twice and prompts with two answers; both places are named."""

    def __init__(self) -> None:
        self.ids: dict[str, Record] = {}
        self.prompts: dict[tuple[Message, ...], Record] = {}

    def admits(self, record: Record, problems: Problems) -> bool:
        """False for a contradiction; a plain repetition is admitted and left to the cleaning."""
        first = self.prompts.setdefault(record.task.messages, record)
        if first.task.answer != record.task.answer:
            found = f"{shown(first.task.answer)} in {first.where}, {shown(record.task.answer)} here"
            problems.add(record.where, "answer", f"same prompt, different answer (got {found})", "keep the right one")
            return False
        named = self.ids.setdefault(record.task.id, record)
        if named.task.messages != record.task.messages:
            problem = f"already used in {named.where} (got {shown(record.task.id)})"
            problems.add(record.where, "id", problem, "give each row its own id, or no id column")
            return False
        return True


@dataclass(frozen=True)
class Cell:
    """Typed access to the fields of one row; what is wrong goes to ``problems``."""

    where: str
    row: Mapping[str, Any]
    columns: Mapping[str, str]
    problems: Problems

    def problem(self, name: str, problem: str, fix: str) -> None:
        self.problems.add(self.where, self.columns.get(name, name), problem, fix)

    def get(self, name: str) -> Any:
        """The value, or None. A column that was named in ``columns`` must be there."""
        column = self.columns.get(name, name)
        if column not in self.row and name in self.columns:
            self.problem(name, f"no such column{nearest(column, self.row)}", f"set columns.{name}")
        return self.row.get(column)

    def text(self, name: str, *, numbers: bool = False) -> str | None:
        value = self.get(name)
        if numbers and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if value is None or isinstance(value, str):
            return value
        kinds = "text or a number" if numbers else "text"
        self.problem(name, f"expected {kinds} (got {shown(value)})", f"convert it to {kinds}")
        return None

    def name(self, name: str) -> str | None:
        value = self.text(name, numbers=True)
        if value is not None and not NAME.fullmatch(value):
            self.problem(name, f"not a name (got {shown(value)})", "1 to 80 letters, digits, dots, dashes, underscores")
        return value

    def level(self) -> int:
        value = self.get("level")
        if value is None:
            return 0
        if isinstance(value, bool) or not re.fullmatch(r"\d{1,3}", str(value)):
            self.problem("level", f"expected a whole number from 0 (got {shown(value)})", "0 is the easiest")
            return 0
        return int(value)


def nearest(name: str, names: Iterable[str]) -> str:
    """``; the nearest is 'prompt'``, or what there is instead."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; the nearest is {close[0]!r}" if close else f" (got {', '.join(map(str, names))})"


def _messages(cell: Cell) -> tuple[Message, ...] | None:
    listed = cell.get("messages")
    if listed is not None:
        return _conversation(cell, listed)
    prompt, system = cell.text("prompt"), cell.text("system")
    if prompt is None:
        column = cell.columns.get("prompt", "prompt")
        if column not in cell.row and "prompt" not in cell.columns:
            cell.problem("prompt", f"missing{nearest(column, cell.row)}", "rename the column or set columns.prompt")
        elif cell.row.get(column, "") is None:
            cell.problem("prompt", "missing (got null)", "drop the row")
        return None
    if not prompt.strip():
        cell.problem("prompt", f"empty (got {shown(prompt)})", "drop the row")
        return None
    user = Message("user", prompt.strip())
    return (Message("system", system), user) if system else (user,)


def _conversation(cell: Cell, listed: Any) -> tuple[Message, ...] | None:
    whole = isinstance(listed, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in listed
    )
    if not whole or not listed:
        cell.problem("messages", f"expected a list of role and content (got {shown(listed)})", "see the docs of Table")
        return None
    roles = [message["role"] for message in listed]
    if unknown := [role for role in roles if role not in _ROLES]:
        cell.problem("messages", f"unknown role (got {shown(unknown[0])})", f"one of {', '.join(_ROLES)}")
    elif "user" not in roles or roles[-1] != "user":
        cell.problem("messages", f"must end with the user's turn (got {' '.join(roles)})", "cut what follows it")
    elif any(a == b == "assistant" for a, b in pairwise(roles)):
        cell.problem("messages", f"two assistant turns running (got {' '.join(roles)})", "join them")
    elif any(b == "tool" and a not in ("assistant", "tool") for a, b in pairwise(["", *roles])):
        cell.problem("messages", f"a tool message without a call before it (got {' '.join(roles)})", "add the call")
    elif not listed[-1]["content"].strip():
        cell.problem("messages", 'the last turn is empty (got "")', "drop the row")
    else:
        return tuple(Message(message["role"], message["content"]) for message in listed)
    return None
