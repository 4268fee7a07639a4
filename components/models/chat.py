"""Conversations to tokens, once: the prompt as the template renders it, the response as the policy would emit it.

Three rules hold for every tokenizer:
- A template's own markup becomes control tokens, text written by users and tools never does.
- What the template pre-fills of the answer ("<think>") belongs to the prompt, and to no response.
- A response is encoded apart from its prompt, and every ``<result>…</result>`` apart from its surroundings, because
  that is how they come into being during a rollout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from os.path import commonprefix
from typing import Any

from components.types import Example, Message

RESULT = re.compile(r"(<result>.*?(?:</result>|\Z))", re.DOTALL)

# Unicode noncharacters: never in text, so one that a text lacks can mark where a forbidden token is cut in two.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation that ends where the answer begins.

    Attributes:
        tokens: ids, ``prefill`` included.
        prefill: the part of the answer that the template writes ("<think>", "<think>\\n" or nothing).
    """

    tokens: tuple[int, ...]
    prefill: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """A supervised sample: ``mask`` is True where the model learns ``tokens``; both start after ``prompt``."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    mask: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.tokens)


def render(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Prompt:
    """The conversation with the assistant to speak next.

    Args:
        tools: JSON schemas of the tools that the assistant may call, for a template that shows them.

    Raises:
        ValueError: no messages, no chat template, or a template that rejects the conversation.
    """
    return _chat(tokenizer).prompts([tuple(messages)], tools)[0]


def render_all(tokenizer: Any, conversations: Iterable[Sequence[Message]]) -> list[Prompt]:
    """`render` of many conversations, tokenised in one batch; equal ones are rendered once."""
    return _chat(tokenizer).prompts([tuple(messages) for messages in conversations])


def shows_tools(tokenizer: Any) -> bool:
    """Whether the chat template writes the schemas it is given into the prompt."""
    return _chat(tokenizer).shows_tools


def encode_example(tokenizer: Any, example: Example) -> Encoded:
    """See `encode_examples`."""
    return encode_examples(tokenizer, [example])[0]


def encode_examples(tokenizer: Any, examples: Sequence[Example]) -> list[Encoded]:
    """Prompt, response tokens (terminator included) and mask of each example.

    A response has the template's prefill taken off its beginning and the eos token put at its end; the spans
    ``<result>…</result>`` are the environment's words and masked out. ``example.tokens``, ``example.mask`` and
    ``example.prompt_tokens`` are used as they are where they are given.

    Raises:
        ValueError: a response that does not begin with the prefill, or a mask of another length than its tokens.
    """
    chat = _chat(tokenizer)
    asked = [i for i, example in enumerate(examples) if example.prompt_tokens is None or not example.tokens]
    prompts = dict(zip(asked, chat.prompts([examples[i].messages for i in asked]), strict=True))
    written = [
        (i, chat.response(example, prompts[i].prefill)) for i, example in enumerate(examples) if not example.tokens
    ]
    encoded = dict(zip([i for i, _ in written], chat.encode_responses([text for _, text in written]), strict=True))
    out = []
    for i, example in enumerate(examples):
        tokens, mask = encoded[i] if i in encoded else _given(example)
        prompt = prompts[i].tokens if example.prompt_tokens is None else example.prompt_tokens
        out.append(Encoded(prompt, tokens, mask))
    return out


def encode_plain(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Tokens of a text that nobody trusts: whatever looks like a special token in it is spelt out in ordinary ones."""
    chat = _chat(tokenizer)
    mark = _free_mark(text)
    return tuple(chat.encode_marked([chat.cut(text, chat.special, mark)], mark)[0])


class _Chat:
    """What one tokenizer and its template need looked up once: special tokens, control tokens, prefill."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template. Fix: load the model with models.load, which adds one")
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos token, so that no answer could ever end. Fix: set eos_token")
        self.tokenizer = tokenizer
        added = [token.content for token in tokenizer.added_tokens_decoder.values()]
        self.special = _any_of(token for token in added if token.strip() and len(token) > 1)
        self.prefill, markup = self._probe()
        ends = {tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token}
        # Tags such as <think> stay whole in an assistant's text, what separates turns does not.
        self.control = _any_of(token for token in added if len(token) > 1 and (token in markup or token in ends))

    def _probe(self) -> tuple[str, str]:
        """What the template pre-fills of an answer, and all else that it writes around turns.

        An answer followed by a question shows the header alone; one that ends the conversation may carry an
        empty thought. So the prefill is what the generation prompt has beyond the header of an earlier answer.
        """
        turns = [("user", "@Q@"), ("assistant", "@A@"), ("user", "@Q@")]
        opened = self.text([Message(*turns[0])])
        whole = self.text([Message(*turn) for turn in turns])
        before = whole.partition("@A@")[0]
        header = commonprefix([opened, before]) if before != whole else opened  # noqa: RUF071 – characters are meant
        prefill = opened[len(header) :]
        return prefill, whole.removesuffix(prefill)

    @cached_property
    def shows_tools(self) -> bool:
        """See `shows_tools`."""
        function = {"name": "@F@", "description": "@D@", "parameters": {"type": "object", "properties": {}}}
        try:
            return "@F@" in self.text([Message("user", "@Q@")], [{"type": "function", "function": function}])
        except ValueError:
            return False

    def text(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
        """The template's rendering, generation prompt included."""
        if not messages:
            raise ValueError("a conversation needs at least one message, got none")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            given = {"tools": list(tools)} if tools else {}
            return self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **given)
        except Exception as error:  # a template may raise anything for a conversation that it does not take
            roles = ", ".join(message.role for message in messages)
            raise ValueError(f"the chat template rejects a conversation of roles {roles}: {error}") from error

    def prompts(self, conversations: Sequence[tuple[Message, ...]], tools: Sequence[Any] = ()) -> list[Prompt]:
        known: dict[tuple[Message, ...], Prompt] = {}
        mark = _free_mark(*(message.content for messages in conversations for message in messages))
        unique = list(dict.fromkeys(conversations))
        texts = [self.text([self._guarded(message, mark) for message in messages], tools) for messages in unique]
        for messages, tokens in zip(unique, self.encode_marked(texts, mark), strict=True):
            known[messages] = Prompt(tuple(tokens), self.prefill)
        return [known[messages] for messages in conversations]

    def _guarded(self, message: Message, mark: str) -> Message:
        trusted = message.role in ("assistant", "system", "developer")
        content = self.cut(message.content, self.control if trusted else self.special, mark)
        return message if content is message.content else Message(message.role, content)

    def response(self, example: Example, prefill: str) -> str:
        """The example's response without what the prompt already holds of it."""
        for beginning in (prefill, prefill.rstrip()):
            if example.response.startswith(beginning):
                return example.response[len(beginning) :]
        raise ValueError(
            f"example {example.task_id!r}: the chat template begins every answer with {prefill!r}, "
            f"but this response begins with {example.response[:20]!r}. Fix: write the thought, or use another template"
        )

    def encode_responses(self, responses: Sequence[str]) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
        """(tokens, mask) of each response, terminator included and learned."""
        mark = _free_mark(*responses)
        spans = [[span for span in RESULT.split(response) if span] for response in responses]
        cut = [self.cut(span, self.control, mark) for parts in spans for span in parts]
        ids = iter(self.encode_marked(cut, mark))
        out = []
        for parts in spans:
            tokens: list[int] = []
            mask: list[bool] = []
            for span in parts:
                piece = next(ids)
                tokens += piece
                mask += [not span.startswith("<result>")] * len(piece)
            out.append(((*tokens, self.tokenizer.eos_token_id), (*mask, True)))
        return out

    @staticmethod
    def cut(text: str, tokens: re.Pattern[str], mark: str) -> str:
        """``text`` with a mark inside every occurrence of one of ``tokens``, overlapping ones too."""
        return tokens.sub(lambda found: found[0] + mark, text)

    def encode_marked(self, texts: Sequence[str], mark: str) -> list[list[int]]:
        """Ids of each text, the stretches between marks encoded apart: a token cut by a mark cannot be matched."""
        pieces = [text.split(mark) for text in texts]
        flat = [piece for parts in pieces for piece in parts]
        if not flat:
            return []
        # A template writes its own beginning of sequence: the tokenizer must not add a second one.
        ids = iter(self.tokenizer(flat, add_special_tokens=False, return_attention_mask=False)["input_ids"])
        return [[token for _ in parts for token in next(ids)] for parts in pieces]


def _chat(tokenizer: Any) -> _Chat:
    return _known(tokenizer, tokenizer.chat_template, tokenizer.eos_token, len(tokenizer))


@lru_cache(maxsize=8)
def _known(tokenizer: Any, *_changed: object) -> _Chat:
    return _Chat(tokenizer)


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of any of the tokens, where the whole token stands."""
    return re.compile("|".join(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in sorted(set(tokens))) or "(?!)")


def _free_mark(*texts: str) -> str:
    for mark in _MARKS:
        if not any(mark in text for text in texts):
            return mark
    raise ValueError("a text holds all 32 Unicode noncharacters U+FDD0–U+FDEF: it is not text")


def _given(example: Example) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    tokens: tuple[int, ...] = example.tokens or ()
    mask: tuple[bool, ...] = (True,) * len(tokens) if example.mask is None else example.mask
    if len(mask) != len(tokens):
        raise ValueError(f"example {example.task_id!r}: {len(tokens)} tokens but a mask of {len(mask)}")
    return tokens, mask
