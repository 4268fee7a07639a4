"""No environment: the policy writes until it ends its turn."""

from __future__ import annotations

from components.environments.protocol import Step
from components.types import Task


class SingleTurn:
    """Hands over never; the same as passing no environment."""

    stop: tuple[str, ...] = ()
    wrapper: tuple[str, str] = ("", "")

    def reset(self, task: Task | None) -> SingleTurn:
        return self

    def step(self, text: str) -> Step:
        return Step(done=True)
