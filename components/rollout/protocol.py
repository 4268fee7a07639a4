"""What goes into a rollout engine and what comes out: token ids and plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from components.rollout.sampling import Sampling
from components.types import Finish, Task


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued ``len(seeds)`` times.

    Attributes:
        tokens: the rendered prompt, at least one id.
        seeds: one 63-bit seed per sample; with the weights and the settings it determines that sample.
        task: handed to the environment.
    """

    tokens: tuple[int, ...]
    seeds: tuple[int, ...]
    task: Task | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One continuation, token-exact.

    Attributes:
        tokens: the policy's tokens and the environment's, terminator included.
        action_mask: True where the policy chose the token.
        logp: log-probability (nats) of each chosen token under the distribution it was drawn from (tempered,
            truncated, renormalised; of the untempered model if greedy); 0.0 where the environment wrote.
        finish: "stop" (end of turn, or the environment ended the episode), "length", "timeout" (the environment did not
            answer in time), "failed" (it raised).
        info: the environment's counters.
        error: what the environment raised.
        turn_rewards: the environment's, of the policy's turns.
        state: what the episode left behind.
    """

    tokens: tuple[int, ...]
    action_mask: tuple[bool, ...]
    logp: tuple[float, ...]
    finish: Finish
    info: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    turn_rewards: tuple[float, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """Samples continuations. A completion depends on its prompt, seed, weights and settings only."""

    def generate(
        self, prompts: Sequence[Request], sampling: Sampling, environment: Any = None
    ) -> list[list[Completion]]:
        """Completions in the order of ``prompts`` and their seeds.

        Args:
            environment: an `components.environments.protocol.Environment`; None for a single turn.

        Raises:
            ValueError: an empty prompt, an id outside the vocabulary, a prompt that leaves no room in the context.
        """
        ...

    def load(self, weights: Mapping[str, Any]) -> None:
        """Sample from these weights (a state dict) from now on."""
        ...


def check_requests(prompts: Sequence[Request], sampling: Sampling, vocabulary: int, context: int | None) -> None:
    """Raise ValueError for requests that cannot be served, naming the request."""
    for i, request in enumerate(prompts):
        name = f"request {i}" + (f" (task {request.task.id})" if request.task else "")
        if not request.tokens:
            raise ValueError(f"{name}: the prompt has no tokens. Render it with a begin token or a chat template.")
        if not 0 <= min(request.tokens) <= max(request.tokens) < vocabulary:
            raise ValueError(f"{name}: token ids must lie in [0, {vocabulary}), the model's vocabulary")
        if context is not None and len(request.tokens) + sampling.max_new_tokens > context:
            raise ValueError(
                f"{name}: {len(request.tokens)} prompt tokens + max_new_tokens={sampling.max_new_tokens} exceed the "
                f"model's context of {context}. Shorten the prompt or lower max_new_tokens."
            )
