"""What a policy can act on while it writes. Plain data: an environment knows no tokens and no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from components.types import Task


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer to one piece of the policy's text.

    Attributes:
        observation: text put between the environment's ``wrapper`` and appended; None appends nothing.
        done: the episode ends here, after the observation if there is one.
        info: counters, added up over the episode into the rollout's ``info``.
    """

    observation: str | None = None
    done: bool = False
    info: Mapping[str, float] = field(default_factory=dict)


class Episode(Protocol):
    """One rollout's own state."""

    def step(self, text: str) -> Step:
        """Act on what the policy wrote since the last observation, the stop string included.

        An exception fails this rollout only: it is masked from the loss, never scored.
        """
        ...


class Environment(Protocol):
    """Makes episodes.

    Attributes:
        stop: strings at which the policy hands over; a string that is one special token is matched by its id.
        wrapper: text before and after every observation. Special tokens count as such here, and only here: inside
            an observation they are split into ordinary text, so that tool output cannot open a turn.
    """

    stop: tuple[str, ...]
    wrapper: tuple[str, str]

    def reset(self, task: Task | None) -> Episode: ...
