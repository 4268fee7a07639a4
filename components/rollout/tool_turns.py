"""How a chat template writes what a tool said: the text around it, found by rendering one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_FIRST, _SECOND = "@R1@", "@R2@"
_RESPONSE = ("<tool_response>\n", "\n</tool_response>")
_CALL = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {"x": 1}}}


class Around(NamedTuple):
    """Text before, between and after the results of one turn's calls; ``after`` opens the policy's next turn."""

    before: str
    between: str
    after: str


def around(tokenizer: Any, ends: Sequence[str], speaker: str = "tool") -> Around:
    """The template's own form of tool results; that of a user's turn with ``<tool_response>`` if it has none.

    What precedes the results starts where the policy stopped: after the token that ended its turn.

    Args:
        ends: strings of the tokens that may end the policy's turn.
        speaker: "user" for results that stand in a user's turn as they are, a line each.

    Raises:
        ValueError: the template rejects a second user turn too.
    """
    calls = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    results = [{"role": "tool", "content": _FIRST}, {"role": "tool", "content": _SECOND}]
    own = None if speaker == "user" else _split(tokenizer, calls, results, ends)
    if own is not None:
        return own
    before, after = ("", "") if speaker == "user" else _RESPONSE
    text = f"{before}{_FIRST}{after}\n{before}{_SECOND}{after}"
    plain = _split(tokenizer, {"role": "assistant", "content": "@A@"}, [{"role": "user", "content": text}], ends)
    if plain is None:
        raise ValueError(
            "the chat template takes neither a tool's turn nor a second user's turn, so that no tool result can be "
            "shown. Fix: use a model with a multi-turn chat template"
        )
    return plain


def _split(tokenizer: Any, answer: Any, results: Sequence[Any], ends: Sequence[str]) -> Around | None:
    question = {"role": "user", "content": "@Q@"}
    try:
        base = tokenizer.apply_chat_template([question, answer], tokenize=False)
        whole = tokenizer.apply_chat_template([question, answer, *results], tokenize=False, add_generation_prompt=True)
    except Exception:  # a template may raise anything for what it does not take
        return None
    if whole.count(_FIRST) != 1 or whole.count(_SECOND) != 1 or not whole.startswith(base.rstrip()):
        return None
    cut = max((at + len(end) for end in ends if (at := base.rfind(end)) >= 0), default=len(base.rstrip()))
    before, _, rest = whole[cut:].partition(_FIRST)
    between, _, after = rest.partition(_SECOND)
    return Around(before, between, after)
