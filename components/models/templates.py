"""What a tokenizer lacks for training is added, and said: a chat template, an opened thought, an end of turn, a pad."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from components.models.directory import system_text

Say = Callable[[str], None]
Thinking = Literal["auto", "open", "none"]

# ChatML where the tokenizer has its markers, else the plain form of arXiv:2501.12948 (table 1); both open the thought.
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
_PLAIN = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '' }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant: <think>{% endif %}"
)
_OPENED = "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
_TODAY = re.compile(r"strftime_now\(\s*(\"[^\"\n]{0,60}\"|'[^'\n]{0,60}')\s*\)")
_DATE = {"%d": "26", "%b": "Jul", "%B": "July", "%Y": "2024", "%m": "07", "%y": "24", "%A": "Friday", "%H": "12"}
_PADS = ("<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>", "<|end_of_text|>")


def complete_tokenizer(
    tokenizer: Any, source: str, say: Say, *, thinking: Thinking = "auto", system: str | None = None
) -> None:
    """Give a tokenizer what training needs and say what was added; a template is changed only where it has to be.

    Args:
        thinking: see `Pretrained.thinking`. system: see `Pretrained.system`.

    Raises:
        ValueError: there is no eos token, so that no answer could ever end; a template that fails for a user's turn, or
            for the system turn that is asked for.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"{source}: the tokenizer has no eos token, so no answer could ever end. Fix: set eos_token in its "
            "tokenizer_config.json to the token that ends a turn"
        )
    if not tokenizer.chat_template:
        chatml = {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.get_vocab())
        starts = tokenizer.bos_token is not None and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        tokenizer.chat_template = ("{{ bos_token }}" if starts else "") + (_CHATML if chatml else _PLAIN)
        say(
            f"{source}: no chat template; {'ChatML' if chatml else 'a plain User/Assistant form'} is used, "
            "with answers that start inside <think>"
        )
    _freeze_date(tokenizer, source, say)
    if (reason := _refusal(tokenizer)) is not None:
        raise ValueError(f"{source}: the chat template fails for a user's turn: {reason}. Fix: repair the template")
    if system:
        _default_system(tokenizer, system)
        if (reason := _refusal(tokenizer)) is not None:
            raise ValueError(system_text(source, reason))
    if thinking == "open" or (thinking == "auto" and "<think>" not in tokenizer.chat_template):
        _open_thought(tokenizer, source, say)
    if thinking == "none" and tokenizer.chat_template.endswith(_OPENED):
        tokenizer.chat_template = tokenizer.chat_template.removesuffix(_OPENED)
    _end_turns(tokenizer, source, say)
    if tokenizer.pad_token_id is None:
        _pad(tokenizer, source, say)


def _refusal(tokenizer: Any) -> str | None:
    """What the template says against a conversation of one question; None if it takes it."""
    turns = [{"role": "user", "content": "q"}]
    try:
        tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template may raise anything
        return " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return None


def _open_thought(tokenizer: Any, source: str, say: Say) -> None:
    """Let the generation prompt end in ``<think>\\n``: it is then part of every prompt, and of no response."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "q"}], add_generation_prompt=True, tokenize=False
    )
    if prompt.rstrip().endswith("<think>"):
        return
    # A template's own last line break is dropped by the engine; in the middle it would be printed.
    tokenizer.chat_template = tokenizer.chat_template.removesuffix("\n") + _OPENED
    say(f"{source}: the chat template knows no thinking; answers now start inside <think>")


def _freeze_date(tokenizer: Any, source: str, say: Say) -> None:
    """A template that prints today's date makes the same question another prompt tomorrow."""
    template = tokenizer.chat_template
    frozen = _TODAY.sub(lambda found: f"'{_dated(found[1][1:-1])}'", template)
    if frozen != template:
        tokenizer.chat_template = frozen
        say(f"{source}: the chat template prints today's date; it now prints {_dated('%d %b %Y')}, so that runs repeat")


def _dated(pattern: str) -> str:
    for code, text in _DATE.items():
        pattern = pattern.replace(code, text)
    return pattern.replace("'", "")


def _default_system(tokenizer: Any, system: str) -> None:
    """Put ``system`` before every conversation that has no system turn of its own."""
    quoted = system.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    own = f"[{{'role': 'system', 'content': '{quoted}'}}] + messages"
    tokenizer.chat_template = (
        f"{{%- if messages and messages[0]['role'] != 'system' %}}{{%- set messages = {own} %}}{{%- endif %}}"
        + tokenizer.chat_template
    )


def _end_turns(tokenizer: Any, source: str, say: Say) -> None:
    """Let answers end with the token that the template writes after an assistant's turn.

    Base models often come with a chat template whose end of turn is not their eos token: taught one and prompted with
    the other they would not stop.
    """
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "@A@"},
        {"role": "user", "content": "q"},
    ]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # a template for single turns only; its end is the eos token then
        return
    after = text.partition("@A@")[2].lstrip()
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    written = next((token for token in sorted(special, key=len, reverse=True) if after.startswith(token)), None)
    if written and written != tokenizer.eos_token and written != tokenizer.bos_token:
        opening = text.partition("q")[0]
        if not opening.strip().startswith(written):  # what opens the next turn ends nothing
            say(f"{source}: the chat template ends turns with {written!r}, which is now the eos token")
            tokenizer.eos_token = written


def _pad(tokenizer: Any, source: str, say: Say) -> None:
    known = tokenizer.get_vocab()
    free = next((token for token in _PADS if token in known and token != tokenizer.eos_token), None)
    tokenizer.pad_token = free or tokenizer.eos_token
    say(f"{source}: no pad token; {tokenizer.pad_token!r} fills rows up (padding is told by length, never by id)")
