"""Worked solutions of public sets: the answer inside them, and marks in them that a model should not learn."""

from __future__ import annotations

_BOXES = ("\\boxed{", "\\fbox{")


def boxed(text: str) -> str | None:
    """What the last ``\\boxed{…}`` with balanced braces holds; None without one. Linear in the text's length."""
    start = max((at + len(box) for box in _BOXES if (at := text.rfind(box)) >= 0), default=-1)
    if start < 0:
        return None
    depth = 1
    for end in range(start, len(text)):
        if text[end] in "{}" and text[end - 1] != "\\":
            depth += 1 if text[end] == "{" else -1
            if depth == 0:
                return text[start:end].strip()
    return None


def without_annotations(text: str) -> str:
    """The text without GSM8K's calculator marks: ``48/2 = <<48/2=24>>24`` becomes ``48/2 = 24``."""
    kept, at = [], 0
    while (opened := text.find("<<", at)) >= 0 and (closed := text.find(">>", opened)) >= 0:
        kept.append(text[at:opened])
        at = closed + len(">>")
    return "".join([*kept, text[at:]])
