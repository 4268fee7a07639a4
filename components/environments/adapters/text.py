"""What a policy's turn says, without what only its template and its thinking put there."""

from __future__ import annotations


def spoken(text: str) -> str:
    """The turn after the thinking, without the tokens ``<|…|>`` and ``</s>`` that end it."""
    text = text[end + len("</think>") :] if (end := text.rfind("</think>")) >= 0 else text
    text = text.strip()
    while True:
        if text.endswith("|>") and (begin := text.rfind("<|")) >= 0:
            text = text[:begin].rstrip()
        elif text.endswith("</s>"):
            text = text.removesuffix("</s>").rstrip()
        else:
            return text


def tagged(text: str, tag: str) -> str | None:
    """The text in the last ``<tag>…</tag>``, or None."""
    body, closed, _ = text.rpartition(f"</{tag}>")
    _, opened, inner = body.rpartition(f"<{tag}>")
    return inner.strip() if closed and opened else None
