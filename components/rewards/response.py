"""Taking a response apart: thinking, final answer, and whether it has the asked-for form. Linear time."""

from __future__ import annotations

from dataclasses import dataclass

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True, slots=True)
class Parts:
    """A response taken apart.

    Attributes:
        thinking: text between the first ``<think>`` and the last ``</think>`` ("" if there is none).
        answer: text of the last complete ``<answer>`` pair after the thinking, stripped; None if there is none.
        well_formed: the response is exactly one thought, then one answer, and nothing else.
    """

    thinking: str
    answer: str | None
    well_formed: bool


def take_apart(response: str) -> Parts:
    """Split ``<think>…</think><answer>…</answer>``.

    Tags are counted as well as ordered: a pattern alone pays for a second, hedged answer. Only what follows the last
    ``</think>`` can be an answer, so that a box inside the thinking is never taken for one.
    """
    text = response.strip()
    closing = text.rfind("</think>")
    opening = text.find("<think>")
    thinking = text[opening + len("<think>") : closing] if 0 <= opening < closing else ""
    tail = text[closing + len("</think>") :] if closing >= 0 else text
    end = tail.rfind("</answer>")
    start = tail.rfind("<answer>", 0, end) if end >= 0 else -1
    answer = tail[start + len("<answer>") : end].strip() if start >= 0 else None
    once = all(text.count(tag) == 1 for tag in TAGS)
    framed = opening == 0 and text.endswith("</answer>") and tail.lstrip().startswith("<answer>")
    return Parts(thinking, answer, once and framed and bool(thinking.strip()) and bool(answer))
