"""Rollouts that begin in the middle of an episode, for a search among its turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from components.rollout.collect import as_rollout
from components.rollout.protocol import Completion, Request
from components.rollout.replay import SAID, Replayed
from components.rollout.sampling import Sampling
from components.rollout.spans import turns
from components.rollout.tree import Node, Turn
from components.stages.shared import Policy
from components.types import Rollout, Task

_STEP = 64  # tokens: limits of rollouts that begin at different depths are rounded down to multiples, to share batches


class _Prompt(NamedTuple):
    tokens: tuple[int, ...]
    prefill: str


Place = tuple[Task, Any, Node, int]
"""Task, its rendered prompt, the node to go on from, seed."""


class Branches:
    """A policy that plays on from any turn."""

    def __init__(self, policy: Policy, environment: Any, sampling: Sampling) -> None:
        self._policy, self._sampling = policy, sampling
        acts = environment is not None and (environment.stop or getattr(environment, "chat", False))
        self._environment = Replayed(environment) if acts else None
        self._given = environment
        self._chat = bool(getattr(environment, "chat", False))
        self.speaker = str(getattr(environment, "speaker", "tool"))

    def prompts(self, tasks: Sequence[Task]) -> list[Any]:
        return self._policy.prompts(tasks, self._given)

    def text(self, tokens: Sequence[int]) -> str:
        """A turn's text, without the token that ends it."""
        own = list(tokens[:-1] if tokens and tokens[-1] in self._ends else tokens)
        return self._policy.tokenizer.decode(own, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @staticmethod
    def answers(turn: Turn) -> list[str]:
        """What the environment said to a turn."""
        said = [observation for _, observation in turn.said if observation is not None]
        return [text for o in said for text in ([o] if isinstance(o, str) else o)]

    def play(self, places: Sequence[Place]) -> list[tuple[Rollout, list[Turn]]]:
        """The whole rollout of each place, and the turns that are new."""
        limits = [self._limit(node) for _, _, node, _ in places]
        played: list[Any] = [None] * len(places)
        for limit in sorted(set(limits)):
            mine = [i for i, own in enumerate(limits) if own == limit]
            requests = [self._request(*places[i]) for i in mine]
            sampling = replace(self._sampling, max_new_tokens=limit)
            groups = self._policy.engine.generate(requests, sampling, self._environment)
            for i, (completion,) in zip(mine, groups, strict=True):
                played[i] = self._taken(places[i], completion)
        return played

    def _limit(self, node: Node) -> int:
        used = sum(len(turn.tokens) for turn in node.path)
        left = self._sampling.max_new_tokens - used
        return left if not used or left < _STEP else left // _STEP * _STEP

    def _request(self, task: Task, prompt: Any, node: Node, seed: int) -> Request:
        before = [token for turn in node.path for token in turn.tokens]
        said = tuple(pair for turn in node.path for pair in turn.said)
        going = replace(task, meta={**task.meta, SAID: said}) if said else task
        return Request((*prompt.tokens, *before), (seed,), going)

    def _taken(self, place: Place, new: Completion) -> tuple[Rollout, list[Turn]]:
        task, prompt, node, _ = place
        said, left = list(new.state.get("said", ())), new.state.get("left", {})
        added = _turns(new, said)
        path = [*node.path, *added]
        info: dict[str, float] = {}
        for counts in (*(turn.info for turn in node.path), new.info):
            info = _summed(info, counts)
        completion = replace(
            new,
            tokens=tuple(t for turn in path for t in turn.tokens),
            action_mask=tuple(m for turn in path for m in turn.mask),
            logp=tuple(p for turn in path for p in turn.logp),
            info=info,
            turn_rewards=(*(turn.reward for turn in node.path), *new.turn_rewards),
            state=left,
        )
        whole = _Prompt(tuple(prompt.tokens), prompt.prefill)
        wrapper = None if self._chat else ("", "") if self._given is None else tuple(self._given.wrapper)
        request = Request(whole.tokens, (0,), task)
        rollout = as_rollout(self._policy.tokenizer, request, whole, completion, self._ends, 0, wrapper)
        return rollout, added

    @property
    def _ends(self) -> set[int]:
        return set(getattr(self._policy.engine, "eos_ids", ())) | {self._policy.tokenizer.eos_token_id}


def _turns(new: Completion, said: Sequence[Any]) -> list[Turn]:
    """A completion in turns, each with what the environment was told and answered at its end."""
    begins = [first for first, _ in turns(new.action_mask)] or [0]
    begins[0] = 0
    parts = list(zip(begins, [*begins[1:], len(new.tokens)], strict=True))
    heard = iter(said)
    made = []
    for first, end in parts:
        own = new.action_mask[first:end].index(False) if False in new.action_mask[first:end] else end - first
        pairs: list[tuple[str, Any]] = []
        info: dict[str, float] = {}
        reward = 0.0
        for text, observation, counts, paid in heard:
            pairs.append((text, observation))
            info = _summed(info, counts)
            reward += paid
            if observation is not None:
                break
        made.append(
            Turn(
                new.tokens[first : first + own],
                new.tokens[first:end],
                new.action_mask[first:end],
                new.logp[first:end],
                tuple(pairs),
                info,
                reward,
            )
        )
    return made


def _summed(one: Mapping[str, float], two: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + two.get(name, 0.0) for name in (*one, *two)}
