"""One row of the user's data: columns mapped to fields, every value checked, every problem told with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from components.data.cells import NAME, Cell, is_blank, nearest
from components.data.corpus import Problems, shown
from components.data.general import task_id
from components.data.solutions import boxed, without_annotations
from components.data.verify import final_answer
from components.rng import derive
from components.types import Message, Task

__all__ = ["FIELDS", "NAME", "Reading", "Record", "Seen", "nearest", "read_record"]

FIELDS = ("id", "prompt", "messages", "system", "answer", "trace", "chosen", "rejected", "family", "level", "meta")
_ROLES = ("system", "user", "assistant", "tool")
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class Record:
    """One checked row."""

    where: str
    task: Task
    trace: str | None
    chosen: str | None
    rejected: str | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How rows are read; attributes as in `components.data.tables.Table`."""

    columns: Mapping[str, str]
    verifier: str
    family: str
    answer_after: str | None = None
    answer_boxed: bool = False
    drop_annotations: bool = False
    levels: str = "column"


def read_record(where: str, row: Mapping[str, Any], problems: Problems, reading: Reading) -> Record | None:
    """Map and check one row; None if it has problems."""
    before = len(problems.lines)
    cell = Cell(where, row, reading.columns, problems)
    messages = _messages(cell)
    answer, trace = _worked(cell, reading)
    if answer is not None:
        _check_gold(cell, answer, reading.verifier)
    if trace is not None and "<answer>" in trace and final_answer(trace.strip()) is None:
        problem = f"tags out of order (got {shown(trace)})"
        cell.problem("trace", problem, "<think>…</think><answer>…</answer>, each once, or no tags at all")
    chosen, rejected = cell.reply("chosen"), cell.reply("rejected")
    if (chosen is None) != (rejected is None):
        cell.problem("chosen" if chosen is None else "rejected", "missing beside the other (got null)", "give both")
    elif chosen is not None and rejected is not None:
        _check_pair(cell, chosen, rejected)
    family = cell.slug("family") or reading.family
    level = _steps(trace) if reading.levels == "steps" else cell.level()
    meta = cell.mapping("meta")
    judged = answer is not None or "check" in meta
    identity = cell.name("id")
    if len(problems.lines) > before or messages is None:
        return None
    prompt = " ".join(message.content for message in messages)
    task = Task(
        id=identity or task_id(family[:40], level, prompt),
        messages=messages,
        answer=answer,
        verifier=reading.verifier if answer is not None else "state" if judged else "open",
        family=family,
        level=level,
        kind="reasoning" if judged else "general",
        meta=meta,
    )
    return Record(where, task, trace, chosen, rejected)


def _check_pair(cell: Cell, chosen: str, rejected: str) -> None:
    """Pairs that nothing can be learned from, or the wrong thing."""
    if is_blank(chosen):
        cell.problem("chosen", f"empty (got {_coded(chosen)})", "give the response, or drop the row")
    elif chosen.strip() == rejected.strip():
        cell.problem("rejected", f"the same as chosen (got {shown(rejected)})", "drop the row")


def _check_gold(cell: Cell, answer: str, verifier: str) -> None:
    """Answers that no response could be found to give."""
    if is_blank(answer):
        cell.problem("answer", f"empty, it can never score (got {_coded(answer)})", "give the gold answer, or null")
    elif len(answer) > 2000:
        cell.problem("answer", f"{len(answer)} characters, the verifier refuses more than 2000", "shorten it")
    elif tag := next((tag for tag in _TAGS if tag in answer), None):
        problem = f"{tag} in it: it would end the answer early, so it can never score (got {shown(answer)})"
        cell.problem("answer", problem, "give what stands inside the tags, or name the column trace")
    elif verifier == "math" and not any(c.isalnum() for c in answer):
        problem = f"no number and no expression, it can never score (got {shown(answer)})"
        cell.problem("answer", problem, "give the value, or verifier=exact")


def _worked(cell: Cell, reading: Reading) -> tuple[str | None, str | None]:
    """(gold answer, worked solution): from columns of their own, or the answer taken out of the solution."""
    trace = cell.text("trace")
    answer = cell.text("answer", numbers=True)
    if answer is not None and reading.answer_after is not None:
        worked, marker, answer = answer.rpartition(reading.answer_after)
        if not marker:
            problem = f"no {reading.answer_after!r} in it (got {shown(answer)})"
            cell.problem("answer", problem, "unset answer_after or repair the row")
        trace, answer = trace or worked.strip() or None, answer.strip()
    elif answer is not None and reading.answer_boxed:
        inside = boxed(answer)
        if inside is None:
            cell.problem(
                "answer", f"no \\boxed{{…}} in it (got {shown(answer)})", "unset answer_boxed or repair the row"
            )
        trace, answer = trace or answer.strip() or None, inside
    return answer, without_annotations(trace) if trace is not None and reading.drop_annotations else trace


def _coded(text: str) -> str:
    """A text in which nothing can be seen, with what stands in it as codes."""
    return json.dumps(text)


def _steps(trace: str | None) -> int:
    """Lines of the worked solution beyond the first, 7 at most."""
    return max(0, min(8, sum(bool(line.strip()) for line in (trace or "").splitlines())) - 1)


class Seen:
    """Refuses ids used twice and prompts with two answers; both places are named."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[str, int]] = {}  # → (place, prompt)
        self._prompts: dict[int, tuple[str, str | None]] = {}  # → (place, answer); 63 bits stand for the prompt

    def admits(self, record: Record, problems: Problems) -> bool:
        """False for a contradiction; a plain repetition is admitted and left to the cleaning."""
        task = record.task
        prompt = derive("prompt", *(part for m in task.messages for part in (m.role, m.content)))
        where, answer = self._prompts.setdefault(prompt, (record.where, task.answer))
        if answer != task.answer:
            found = f"{shown(answer)} in {where}, {shown(task.answer)} here"
            problems.add(record.where, "answer", f"same prompt, different answer (got {found})", "keep the right one")
            return False
        where, named = self._ids.setdefault(task.id, (record.where, prompt))
        if named != prompt:
            problem = f"already used in {where} (got {shown(task.id)})"
            problems.add(record.where, "id", problem, "give each row its own id, or no id column")
            return False
        return True


def _messages(cell: Cell) -> tuple[Message, ...] | None:
    listed = cell.get("messages")
    if listed is not None:
        prompt, messages = cell.get("prompt"), _conversation(cell, listed)
        if messages and isinstance(prompt, str) and prompt.strip() != messages[-1].content.strip():
            problem = f"given beside messages, whose last turn is another (got {shown(prompt)})"
            cell.problem("prompt", problem, "give one of the two")
        return messages
    prompt, system = cell.text("prompt"), cell.text("system")
    if (
        prompt is None
        and isinstance(pair := cell.row.get(cell.columns.get("chosen", "chosen")), list)
        and len(pair) > 1
    ):
        return _conversation(cell, pair[:-1])
    if prompt is None:
        column = cell.columns.get("prompt", "prompt")
        if column not in cell.row and "prompt" not in cell.columns:
            cell.problem("prompt", f"missing{nearest(column, cell.row)}", "rename the column or set columns.prompt")
        elif cell.row.get(column, "") is None:
            cell.problem("prompt", "missing (got null)", "drop the row")
        return None
    if is_blank(prompt):
        cell.problem("prompt", f"empty (got {_coded(prompt)})", "drop the row")
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
    elif is_blank(listed[-1]["content"]):
        cell.problem("messages", f"the last turn is empty (got {_coded(listed[-1]['content'])})", "drop the row")
    elif any("\0" in message["content"] for message in listed):
        cell.problem("messages", "a turn holds the character NUL", "take it out, or drop the row")
    else:
        return tuple(Message(message["role"], message["content"]) for message in listed)
    return None
