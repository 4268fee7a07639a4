"""What the environment itself paid, as a term."""

from __future__ import annotations

from components.types import Rollout, Task


def environment_reward(task: Task, rollout: Rollout, *, key: str = "reward", solved: float | None = None) -> float:
    """The number that the episode left behind as ``state[key]``; dots in the key go deeper ("metrics.accuracy").

    Args:
        solved: 1 if the number is at least this, else 0: for what asks whether a task is solved.

    Raises:
        ValueError: there is no such number, so that the rollout has failed and is not trained on.
    """
    value: object = rollout.state
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"the episode of task {task.id} left no number {key!r} (it left {', '.join(rollout.state) or 'nothing'}). "
            "Fix: an environment that pays, as gym or verifiers, or another key"
        )
    return float(value) if solved is None else float(value >= solved)
