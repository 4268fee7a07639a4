"""Process reward: the share of the intermediate steps that can be verified and that hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.rewards.equations import equations
from components.rewards.format import without_spans
from components.rewards.response import take_apart
from components.types import Rollout, Score, Task


class Process:
    """Share of the verifiable steps of the reasoning that hold, in [0, 1].

    Steps are the distinct equations between numbers in the thinking (`equations.equations`; the environment's words
    don't count) and the tool calls: a valid call holds, one that the tool refused does not, and a result that the
    policy wrote itself, with no call behind it, does not.

    Args:
        nothing: value of a response without a verifiable step. Above 0 it would pay to show none.
        rounded: whether ``10 / 3 = 3.33`` holds.
        judge: a process reward model or a judge for the steps that no rule can verify: ``(task, steps) -> scores in
            [0, 1]``, with the thinking's paragraphs as steps. None for rules alone.
        judge_share: weight of the judge's mean beside the rules' share.
        wrapper: text around a tool's result.

    Raises:
        ValueError: settings outside [0, 1]; a judge's scores that are not one finite number in [0, 1] for each step.
    """

    def __init__(
        self,
        *,
        nothing: float = 0.0,
        rounded: bool = True,
        judge: Any = None,
        judge_share: float = 0.5,
        wrapper: Sequence[str] = ("<result>", "</result>"),
    ) -> None:
        for name, value in (("nothing", nothing), ("judge_share", judge_share)):
            if not 0 <= value <= 1:
                raise ValueError(f"process reward: {name} must lie in [0, 1] (got {value})")
        self.nothing, self.rounded, self.judge, self.judge_share = nothing, rounded, judge, judge_share
        self.wrapper = (wrapper[0], wrapper[1])

    def __call__(self, task: Task, rollout: Rollout) -> Score:
        thinking, results = without_spans(take_apart(rollout.response).thinking, *self.wrapper)
        sums = equations(thinking, rounded=self.rounded)
        calls, invalid = (int(rollout.info.get(name, 0)) for name in ("tool_calls", "tool_invalid"))
        made_up = max(0, results - calls)
        steps = len(sums) + calls + made_up
        held = sum(sums.values()) + calls - invalid
        terms = {"steps": float(steps), "held": float(held), "made_up_results": float(made_up)}
        share = held / steps if steps else self.nothing
        if self.judge is None:
            return Score(share, terms)
        opinion = self._opinion(task, thinking)
        total = opinion if not steps else (1 - self.judge_share) * share + self.judge_share * opinion
        return Score(total, {**terms, "judge": opinion})

    def _opinion(self, task: Task, thinking: str) -> float:
        steps = [step for part in thinking.split("\n\n") if (step := part.strip())]
        if not steps:
            return self.nothing
        scores = [float(score) for score in self.judge(task, steps)]
        if len(scores) != len(steps) or not all(0 <= score <= 1 for score in scores):
            raise ValueError(f"process judge: expected {len(steps)} scores in [0, 1] for task {task.id}, got {scores}")
        return sum(scores) / len(scores)
