"""The final answer of a response, in the forms that are accepted. String scans only, linear in the text's length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

Form = Literal["answer", "boxed", "hashes"]
_BRACES = re.compile(r"\\f?boxed[ \t\n]{0,3}\{|\\.|[{}]", re.DOTALL)


def final_answer(response: str, accept: Sequence[Form] = ("answer", "boxed")) -> str | None:
    r"""The last complete answer after the thinking, stripped; None if there is none.

    Args:
        accept: forms that count; where several stand in the text, the one that ends last is the answer.
            "answer": ``<answer>…</answer>``, and what a single box inside holds; "boxed": ``\boxed{…}`` with balanced
            braces; "hashes": the rest of the line after ``####`` (GSM8K).

    What stands before the last ``</think>`` is never an answer, nor is anything after a ``<think>`` that stays open.
    """
    tail = after_thinking(response)
    if tail is None:
        return None
    found = [span for form in accept if (span := _FINDERS[form](tail)) is not None]
    if not found:
        return None
    _, start, end = max((end, start, end) for start, end in found)
    text = tail[start:end].strip()
    inside = boxes(text)
    return (text[slice(*inside[0])] if len(inside) == 1 else text).strip() or None


def after_thinking(response: str) -> str | None:
    """The text after the last ``</think>``, all of it where nothing was opened; None while a thought is open."""
    tail = response.rpartition("</think>")[2]
    return None if "<think>" in tail else tail


def boxes(text: str) -> list[tuple[int, int]]:
    r"""Where the contents of the complete outermost ``\boxed{…}`` begin and end, in order.

    Braces are balanced; ``\{`` and ``\}`` are characters, not braces. A brace that is never closed hides nothing that
    is complete inside it.
    """
    start = text.find("boxed")
    if start < 0:
        return []
    opened: list[int] = []  # of each open brace: where its content begins if it is a box's, else -1
    found: list[tuple[int, int]] = []
    for match in _BRACES.finditer(text, max(0, start - 2)):
        mark = match[0]
        if mark[-1] == "{" and mark != r"\{":
            opened.append(match.end() if len(mark) > 1 else -1)
        elif mark == "}" and opened and (begin := opened.pop()) >= 0:
            while found and found[-1][0] > begin:
                found.pop()  # inside this one
            found.append((begin, match.start()))
    return found


def form_problems(accept: Sequence[str]) -> list[str]:
    """Problems of a list of accepted forms."""
    known = get_args(Form)
    if not accept:
        return [f"accept: no form is accepted, so no answer can be right. Fix: name one of {', '.join(known)}"]
    unknown = [form for form in accept if form not in known]
    return [f"accept: no such form {form!r}. Fix: one of {', '.join(known)}" for form in unknown]


def _tags(text: str) -> tuple[int, int] | None:
    last = text.rfind("</answer>")
    opening = text.rfind("<answer>", 0, last) if last >= 0 else -1
    if opening < 0:
        return None
    begin = opening + len("<answer>")
    return begin, text.find("</answer>", begin)


def _box(text: str) -> tuple[int, int] | None:
    found = boxes(text)
    return found[-1] if found else None


def _hashes(text: str) -> tuple[int, int] | None:
    at = text.rfind("####")
    if at < 0:
        return None
    begin = at + len("####")
    end = text.find("\n", begin)
    return begin, len(text) if end < 0 else end


_FINDERS = {"answer": _tags, "boxed": _box, "hashes": _hashes}
