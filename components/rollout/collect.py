"""From tasks to rollouts: render, seed by address, sample, decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from components.rng import derive
from components.rollout.protocol import Completion, Engine, Request
from components.rollout.sampling import Sampling
from components.types import Rollout, Task


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
    ends = set(getattr(engine, "eos_ids", ())) | {tokenizer.eos_token_id}
    return [
        tuple(_rollout(tokenizer, request, prompt, completion, ends, policy_version) for completion in completions)
        for request, prompt, completions in zip(
            requests, prompts, engine.generate(requests, sampling, environment), strict=True
        )
    ]


def _rollout(
    tokenizer: Any, request: Request, prompt: Any, completion: Completion, ends: set[int], version: int
) -> Rollout:
    tokens = list(completion.tokens)
    if completion.finish == "stop" and tokens and tokens[-1] in ends and completion.action_mask[-1]:
        tokens.pop()
    text = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert request.task is not None
    return Rollout(
        task_id=request.task.id,
        prompt_tokens=request.tokens,
        tokens=completion.tokens,
        action_mask=completion.action_mask,
        logp_behavior=completion.logp,
        response=prompt.prefill + text,
        finish=completion.finish,
        policy_version=version,
        info=completion.info,
        turn_rewards=completion.turn_rewards,
        state=completion.state,
    )
