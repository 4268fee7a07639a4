"""The first half of an RL step: draw prompts, sample, score – in one round, or with dynamic sampling in several."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from components.artifacts import read_json
from components.curriculum.dynamic import keep_informative
from components.rollout.sampling import Sampling
from components.runtime import Inputs
from components.stages.shared import mean, read_tasks
from components.types import Group, Score

# What the environment broke says nothing of the policy: left out and counted, never trained on as a wrong answer.
_BROKEN = Score(0.0, {}, "failed", "the environment failed; the worker's log says how")


@dataclass
class Rounds:
    """Sampling and scoring of one step: one round, or with dynamic sampling as many as fill the batch."""

    run: Any
    reward: Any
    sampling: Sampling
    environment: Any
    group_size: int
    max_failed: float
    reward_s: float = 0.0

    def __call__(self, step: int) -> tuple[list[Group], list[Group]]:
        """(all groups sampled, the groups to train on), the same on every rank; ``reward_s`` is what scoring took."""
        self.reward_s = 0.0
        wanted, extra = sum(self.run.quotas.values()), self.run.updater.algorithm.dynamic_sampling
        sampled: list[Group] = []
        used: list[Group] = []
        for number in range(1 + extra):
            groups = self._round(step, number)
            self.run.observe(groups)
            sampled += groups
            used += keep_informative(groups)[0] if extra else groups
            if len(used) >= wanted:
                break
        if len(used) < wanted:
            self.run.out.say(f"step {step + 1}: {len(used)} of {wanted} groups have signal after {1 + extra} rounds")
        return sampled, used[:wanted]

    def _round(self, step: int, number: int) -> list[Group]:
        run, peers = self.run, self.run.out.peers
        address = (run.out.seed, run.out.name, step, number)
        tasks = peers.shard(run.draw(address))
        updates = run.updates(step)
        rollouts = run.policy.sample(tasks, self.group_size, self.sampling, self.environment, address, updates)
        pairs = [(task, rollout) for task, group in zip(tasks, rollouts, strict=True) for rollout in group]
        began = perf_counter()
        scores = [
            _BROKEN if rollout.finish == "failed" else score
            for (_, rollout), score in zip(pairs, self.reward.score(pairs, updates / run.steps), strict=True)
        ]
        self.reward_s += perf_counter() - began
        size = self.group_size
        groups = [
            Group(task, tuple(group), tuple(scores[i * size : (i + 1) * size]))
            for i, (task, group) in enumerate(zip(tasks, rollouts, strict=True))
        ]
        everyone = peers.unshard(groups)
        self._check_failures(step, everyone)
        return everyone

    def _check_failures(self, step: int, groups: Sequence[Group]) -> None:
        scores = [(group.task.id, score) for group in groups for score in group.scores]
        failed = [(task_id, score.reason) for task_id, score in scores if score.outcome == "failed"]
        if len(failed) > self.max_failed * len(scores):
            task_id, reason = failed[0]
            raise RuntimeError(
                f"{self.run.out.name} step {step + 1}: the reward failed on {len(failed)} of {len(scores)} rollouts, "
                f"more than max_failed={self.max_failed:g} allows. First: task {task_id}: {reason}"
            )


def measure(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the step's rollouts: reward, every term, length, share cut off, groups with signal."""
    scored = [(r, s) for g in groups for r, s in zip(g.rollouts, g.scores, strict=True) if s.outcome == "scored"]
    names = sorted({name for _, s in scored for name in s.terms})
    spread = [max(t) - min(t) > 1e-6 for g in groups if (t := [s.total for s in g.scores if s.outcome == "scored"])]
    by_family = {g.task.family for g in groups}
    return {
        "reward": mean([s.total for _, s in scored]),
        **{name: mean([s.terms[name] for _, s in scored if name in s.terms]) for name in names},
        "length": mean([float(len(r.tokens)) for r, _ in scored]),
        "truncated": mean([float(r.finish == "length") for r, _ in scored]),
        "failed": 1.0 - len(scored) / max(1, sum(len(g.rollouts) for g in groups)),
        "signal": mean([float(s) for s in spread]),
        **{
            f"reward/{family}": mean([s.total for g in groups if g.task.family == family for s in g.scores])
            for family in sorted(by_family)
        },
    }


def start_curricula(inputs: Inputs, curriculum: Any, quotas: Mapping[str, int]) -> dict[str, Any]:
    """One curriculum per quota, started from the profile's pass rates where there is a profile."""
    profile = read_json(inputs["profile"].path / "profile.json") if "profile" in inputs else {}
    rates = {cell: entry["pass_rate"] for cell, entry in profile.items()}
    tasks = read_tasks(inputs, "train")
    curricula = {}
    for name in quotas:
        mine = [task for task in tasks if name in (task.kind, task.family)]
        if not mine:
            known = sorted({task.kind for task in tasks} | {task.family for task in tasks})
            raise ValueError(f"quotas.{name}: no such tasks in the data. Fix: one of {', '.join(known)}")
        curricula[name] = copy.deepcopy(curriculum)
        curricula[name].start(mine, {cell: rates[cell] for cell in {task.cell for task in mine} & rates.keys()})
    return curricula
