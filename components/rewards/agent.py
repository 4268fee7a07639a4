"""Agent reward: completion, tool accuracy, efficiency and format, as terms of a mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from components.rewards.extract import final_answer
from components.rewards.format import ToolCalls, violations
from components.rewards.length import verdicts
from components.rewards.mix import Mix
from components.rewards.state import reached
from components.types import Rollout, Score, Task

_ANY = ToolCalls(json=False)


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
    """1 if the task is completed, else at most ``partial``.

    A task with a gold answer asks for that answer: half-right ones earn ``partial`` times how much of the gold
    answer's words they have (the F1 of words, so that adding words costs; one of a single word is right or wrong). A
    task with a ``check`` in its ``meta`` asks for a final state of the environment (`state.reached`): one that is
    reached in part earns ``partial`` times the share of its conditions. A task with both asks for both, and the worse
    counts. An episode that was cut off has completed no check.

    Args:
        accuracy: term that says whether the answer is right (a value of 1); its partial credit counts as it is.
        partial: most that an answer which is not right can earn; 0 for all or nothing.
    """

    def __init__(self, *, accuracy: Any, partial: float = 0.5) -> None:
        if not 0 <= partial < 1:
            raise ValueError(f"agent completion: partial must lie in [0, 1) (got {partial})")
        self.accuracy, self.partial = accuracy, partial

    def batch(self, pairs: Sequence[tuple[Task, Rollout]]) -> list[float | Score]:
        asked = [i for i, (task, _) in enumerate(pairs) if task.answer is not None or "check" not in task.meta]
        answers = dict(zip(asked, verdicts(self.accuracy, [pairs[i] for i in asked]), strict=True)) if asked else {}
        return [self._worse(answers.get(i, 1.0), task, rollout) for i, (task, rollout) in enumerate(pairs)]

    def _worse(self, answer: float | Score, task: Task, rollout: Rollout) -> float | Score:
        if isinstance(answer, Score):
            return answer
        if answer < 1:
            answer = max(answer, self.partial * _overlap(task, rollout))
        if "check" not in task.meta:
            return answer
        met, count = reached(task.meta["check"], rollout.state)
        if rollout.finish != "stop" or not count:
            return 0.0
        return min(answer, 1.0 if met == count else self.partial * met / count)


class Success:
    """1 if the task is completed in full (see `Completion`), else 0: what an agent's stages count as right.

    Args:
        accuracy: as of `Completion`.
    """

    def __init__(self, *, accuracy: Any) -> None:
        self._completion = Completion(accuracy=accuracy, partial=0.0)

    def __call__(self, task: Task, rollout: Rollout) -> float:
        value = self._completion.batch([(task, rollout)])[0]
        return float((value.total if isinstance(value, Score) else value) >= 1)


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
        calls: how tool calls in a response must look; None where they stand in turns of their own and the environment
            counts malformed ones (``info["tool_malformed"]``).
    """

    def __init__(self, *, calls: ToolCalls | None = None, per_violation: float = 0.2) -> None:
        if per_violation <= 0:
            raise ValueError(f"agent format: per_violation must be positive (got {per_violation})")
        self.calls, self.per_violation = calls, per_violation

    def __call__(self, task: Task, rollout: Rollout) -> float:
        if self.calls is not None:
            return max(0.0, 1.0 - self.per_violation * violations(rollout, self.calls))
        count = violations(rollout, _ANY) + rollout.info.get("tool_malformed", 0.0)
        return max(0.0, 1.0 - self.per_violation * count)


def _overlap(task: Task, rollout: Rollout) -> float:
    """F1 of the words of gold and final answer."""
    gold = Counter((task.answer or "").lower().split())
    mine = Counter((final_answer(rollout.response, ("answer", "boxed")) or "").lower().split())
    if gold.total() < 2 or rollout.finish != "stop":
        return 0.0
    return 2 * (gold & mine).total() / (gold.total() + mine.total())
