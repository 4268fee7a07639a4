"""Agent reward: completion, tool accuracy, efficiency and format, as terms of a mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from components.rewards.extract import final_answer
from components.rewards.format import ToolCalls, violations
from components.rewards.length import verdicts
from components.rewards.mix import Mix
from components.types import Rollout, Score, Task


def agent_reward(
    *, terms: Mapping[str, Any], weights: Mapping[str, float], active: Mapping[str, Sequence[float]] | None = None
) -> Mix:
    """A `Mix` for agents: 0.50 completion + 0.20 tool accuracy + 0.15 efficiency + 0.15 format as shipped.

    Completion should keep at least half of the weight: a policy that completes nothing can have all of the rest.
    """
    return Mix(terms=terms, weights=weights, active=active)


def agent_reward_check(settings: Mapping[str, Any]) -> list[str]:
    """Warns if completion weighs less than half."""
    weights = {name: weight for name, weight in settings["weights"].items() if isinstance(weight, int | float)}
    share = weights.get("completion", 0.0) / (sum(weights.values()) or 1.0)
    if share >= 0.5 - 1e-9:  # figures as people write them
        return []
    return [
        f"weights: warning: completion weighs {share:.0%} of the reward, less than half, so that form and brevity pay "
        "more than finishing the task. Fix: raise weights.completion to at least the sum of the others"
    ]


class Completion:
    """1 if the task is completed, else ``partial`` times how much of the gold answer's words the answer has.

    The partial score is the F1 of words, so that adding words costs; a gold answer of one word is right or wrong.

    Args:
        accuracy: term that says whether the answer is right (a value of 1); its partial credit counts as it is.
        partial: most that an answer which is not right can earn; 0 for all or nothing.
    """

    def __init__(self, *, accuracy: Any, partial: float = 0.5) -> None:
        if not 0 <= partial < 1:
            raise ValueError(f"agent completion: partial must lie in [0, 1) (got {partial})")
        self.accuracy, self.partial = accuracy, partial

    def batch(self, pairs: Sequence[tuple[Task, Rollout]]) -> list[float | Score]:
        return [
            value if isinstance(value, Score) or value >= 1 else max(value, self.partial * _overlap(task, rollout))
            for value, (task, rollout) in zip(verdicts(self.accuracy, pairs), pairs, strict=True)
        ]


def tool_accuracy(task: Task, rollout: Rollout, *, nothing: float = 1.0) -> float:
    """Valid calls / calls; a call beyond the episode's limit is not valid.

    Args:
        nothing: value of an episode without a call. 1 never pays for a needless one, 0 asks for one.
    """
    calls, invalid, refused = (rollout.info.get(f"tool_{name}", 0.0) for name in ("calls", "invalid", "refused"))
    return (calls - invalid) / (calls + refused) if calls + refused else nothing


def efficiency(task: Task, rollout: Rollout, *, max_steps: int = 20) -> float:
    """max(0, 1 − steps / max_steps); 0 for an episode that was cut off.

    Steps are the environment's (``info["steps"]``), or else the tool calls, refused ones included.
    """
    if max_steps < 1:
        raise ValueError(f"agent efficiency: max_steps must be at least 1 (got {max_steps})")
    calls = rollout.info.get("tool_calls", 0.0) + rollout.info.get("tool_refused", 0.0)
    steps = rollout.info.get("steps", calls)
    return max(0.0, 1.0 - steps / max_steps) if rollout.finish == "stop" else 0.0


class Form:
    """max(0, 1 − per_violation · violations), see `format.violations`.

    Args:
        calls: how tool calls must look.
    """

    def __init__(self, *, calls: ToolCalls, per_violation: float = 0.2) -> None:
        if per_violation <= 0:
            raise ValueError(f"agent format: per_violation must be positive (got {per_violation})")
        self.calls, self.per_violation = calls, per_violation

    def __call__(self, task: Task, rollout: Rollout) -> float:
        return max(0.0, 1.0 - self.per_violation * violations(rollout, self.calls))


def _overlap(task: Task, rollout: Rollout) -> float:
    """F1 of the words of gold and final answer."""
    gold = Counter((task.answer or "").lower().split())
    mine = Counter((final_answer(rollout.response, ("answer", "boxed")) or "").lower().split())
    if gold.total() < 2 or rollout.finish != "stop":
        return 0.0
    return 2 * (gold & mine).total() / (gold.total() + mine.total())
