"""From tasks to rollouts: render, seed by address, sample, decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from components.rng import derive
from components.rollout.protocol import Completion, Engine, Request
from components.rollout.sampling import Sampling
from components.rollout.spans import turns
from components.types import Rollout, Task

_QUOTES = str.maketrans({"<": "‹", ">": "›", "\\": "⧵"})


class Prompt(Protocol):
    """A rendered prompt: its ids, and the text the template put at the start of the answer (``<think>\\n``)."""

    tokens: Sequence[int]
    prefill: str


def collect(
    engine: Engine,
    tokenizer: Any,
    render: Callable[[Any, Sequence[Any]], Any],
    tasks: Sequence[Task],
    n: int,
    sampling: Sampling,
    environment: Any = None,
    *,
    address: tuple[int | str, ...],
    policy_version: int = 0,
) -> list[tuple[Rollout, ...]]:
    """``n`` rollouts of each task, in the order of ``tasks``.

    Sample i of a task has seed ``derive(*address, task.id, i)``: it does not depend on which other tasks are sampled,
    nor on the process that does it.

    Args:
        render: (tokenizer, messages) -> `Prompt`.
        address: names this draw, for example (run seed, stage, step).
    """
    if n < 1:
        raise ValueError(f"n must be at least 1 sample per task, got {n}")
    prompts = [render(tokenizer, task.messages) for task in tasks]
    requests = [
        Request(tuple(prompt.tokens), tuple(derive(*address, task.id, i) for i in range(n)), task)
        for task, prompt in zip(tasks, prompts, strict=True)
    ]
    chat = bool(getattr(environment, "chat", False))
    wrapper = ("", "") if environment is None else environment.wrapper
    ends = set(getattr(engine, "eos_ids", ())) | {tokenizer.eos_token_id}
    return [
        tuple(
            as_rollout(tokenizer, request, prompt, completion, ends, policy_version, None if chat else wrapper)
            for completion in completions
        )
        for request, prompt, completions in zip(
            requests, prompts, engine.generate(requests, sampling, environment), strict=True
        )
    ]


def as_rollout(
    tokenizer: Any,
    request: Request,
    prompt: Any,
    completion: Completion,
    ends: set[int],
    version: int,
    wrapper: tuple[str, str] | None,
) -> Rollout:
    """A completion of a request with a task as its rollout.

    Args:
        ends: ids that end a turn.
        wrapper: of the environment; None for a chat environment.

    Raises:
        FloatingPointError: a log-probability is NaN, so that the tokens mean nothing.
    """
    assert request.task is not None
    count = len(completion.tokens)
    if math.isnan(sum(completion.logp)):
        at = next(i for i, value in enumerate(completion.logp) if math.isnan(value))
        raise FloatingPointError(
            f"the model's logits are not numbers (NaN) at token {at} of its answer to task {request.task.id}. Fix: its "
            "weights or activations overflow; load it as float32 or bfloat16, or take an earlier checkpoint"
        )
    if completion.finish == "stop" and count and completion.tokens[-1] in ends and completion.action_mask[-1]:
        count -= 1
    return Rollout(
        task_id=request.task.id,
        prompt_tokens=request.tokens,
        tokens=completion.tokens,
        action_mask=completion.action_mask,
        logp_behavior=completion.logp,
        response=prompt.prefill + _response(tokenizer, completion, count, wrapper),
        finish=completion.finish,
        policy_version=version,
        info=completion.info,
        turn_rewards=completion.turn_rewards,
        state=completion.state,
    )


def _response(tokenizer: Any, completion: Completion, count: int, wrapper: tuple[str, str] | None) -> str:
    """What rewards read: the last turn of a chat, else the whole text with what the environment said in quotes.

    Tags and boxes that an environment says are not the policy's: ``<`` and ``>`` become ‹ and ›, a backslash ⧵. Its
    wrapper stays.
    """

    def decode(tokens: Sequence[int]) -> str:
        return tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    tokens, mask = completion.tokens[:count], completion.action_mask[:count]
    spans = turns([not own for own in mask])  # the environment's
    if wrapper is None:
        return decode(tokens[spans[-1][1] if spans else 0 :])
    # Piecewise only where quoting changes something: bytes of one character may lie on both sides of a border.
    said = [decode(tokens[first:end]) for first, end in spans]
    quoted = [_quoted(text, wrapper) for text in said]
    if said == quoted:
        return decode(tokens)
    text, at = "", 0
    for (first, end), piece in zip(spans, quoted, strict=True):
        text += decode(tokens[at:first]) + piece
        at = end
    return text + decode(tokens[at:])


def _quoted(text: str, wrapper: tuple[str, str]) -> str:
    before, after = wrapper
    begin = len(before) if before and text.startswith(before) else 0
    end = len(text) - (len(after) if after and text.endswith(after) else 0)
    inner = text[begin:end] if begin <= end else ""
    return text[:begin] + inner.translate(_QUOTES) + text[end:] if inner else text
