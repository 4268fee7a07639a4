"""Strict check of program-written responses, so that nothing wrong is ever taught."""

from __future__ import annotations

from components.types import Task

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def final_answer(response: str) -> str | None:
    """The text inside ``<answer>``, or None unless the response is exactly one thought, then one answer."""
    if any(response.count(tag) != 1 for tag in _TAGS):
        return None
    head, _, tail = response.partition("</think>")
    if not head.startswith("<think>") or not tail.startswith("<answer>") or not tail.endswith("</answer>"):
        return None
    return tail[len("<answer>") : -len("</answer>")].strip()


def is_right(task: Task, response: str) -> bool:
    """Whether a response is well-formed and its answer is one that the task accepts, word for word."""
    answer = final_answer(response)
    if answer is None:
        return False
    accepted = task.meta.get("accept") or [task.answer]
    return " ".join(answer.split()) in accepted
