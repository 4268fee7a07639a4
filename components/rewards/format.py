"""Format reward."""

from __future__ import annotations

from components.rewards.response import take_apart
from components.types import Rollout, Task


def think_then_answer(task: Task, rollout: Rollout) -> float:
    """1.0 if the response is exactly one thought, then one answer, and ended by itself; else 0.0.

    The whole response counts, template prefill included. Source: arXiv:2501.12948 §2.2.2.
    """
    return float(rollout.finish == "stop" and take_apart(rollout.response).well_formed)
