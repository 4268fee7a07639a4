"""What a policy can act on while it writes. Plain data: an environment knows no tokens and no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from components.types import Task


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer to one piece of the policy's text.

    Attributes:
        observation: text put between the environment's ``wrapper`` and appended; several (of parallel calls) one after
            the other; None appends nothing.
        done: the episode ends here, after the observation if there is one.
        cut: it ends because a limit is reached: as "length", not as "stop".
        info: counters, added up over the episode into the rollout's ``info``.
        reward: of this turn alone, for turn-level credit; kept per turn in the rollout's ``turn_rewards``.
    """

    observation: str | tuple[str, ...] | None = None
    done: bool = False
    cut: bool = False
    info: Mapping[str, float] = field(default_factory=dict)
    reward: float = 0.0


class Episode(Protocol):
    """One rollout's own state."""

    def step(self, text: str) -> Step:
        """Act on what the policy wrote since the last observation, the stop string included.

        An exception fails this rollout only: it is masked from the loss, never scored. A TimeoutError says that time
        ran out: the rollout ends as "timeout".
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """An episode whose end can be judged from outside."""

    def state(self) -> Mapping[str, Any]:
        """What the episode left behind, JSON values only; asked once, when it is over, also if nothing was done."""
        ...


class Environment(Protocol):
    """Makes episodes.

    Attributes:
        stop: strings at which the policy hands over; a string that is one special token is matched by its id.
        wrapper: text before and after every observation. Special tokens count as such here, and only here: inside
            an observation they are split into ordinary text, so that tool output cannot open a turn.

    What an environment may have besides, each with the default of one that lacks it:
        chat (False): the policy hands over whenever it ends its turn, and an observation is a turn of the tool's, in
            the form of the tokenizer's chat template; ``stop`` and ``wrapper`` are then not read.
        speaker ("tool"): whose turn an observation of a chat environment is, "tool" or "user".
        asynchronous (False): ``reset``, ``step``, ``state`` and ``close`` may take time: they run in a thread of the
            episode, while the engine goes on with other sequences.
        seconds (60): an asynchronous episode whose step takes longer ends as "timeout".
        inspects (False): episodes are `Inspectable`.
        overflow ("stop"): what becomes of an observation that does not fit into what is left of the token limit: "stop"
            ends the rollout as "length", "shorten" cuts the observation so that ``reserve`` tokens are left.
        reserve (64): see ``overflow``.

    A ``chat`` environment has ``schemas(task)``, the JSON schemas of the tools that the task offers, and
    ``manual(task)``, how to call them, for a chat template that has no place for schemas.

    An episode may have ``close()``, called once at its end, however it ended.
    """

    stop: tuple[str, ...]
    wrapper: tuple[str, str]

    def reset(self, task: Task | None) -> Episode: ...
