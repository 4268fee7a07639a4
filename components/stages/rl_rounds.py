"""The first half of an RL step: draw prompts, sample, score – in one round, or with dynamic sampling in several."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from components.artifacts import read_json, write_json
from components.curriculum.dynamic import keep_informative
from components.rewards.verdicts import publish
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.shared import mean, read_tasks
from components.types import Group, Score

_VERDICTS = "verdicts"
# What the environment broke says nothing of the policy: left out and counted, never trained on as a wrong answer.
_BROKEN = Score(0.0, {}, "failed", "the environment failed; the worker's log says how")
_LATE = Score(0.0, {}, "failed", "the environment did not answer in time; the worker's log says where")


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
        progress = updates / run.steps
        began = perf_counter()
        scores = [
            _LATE if rollout.finish == "timeout" else _BROKEN if rollout.finish == "failed" else score
            for (_, rollout), score in zip(pairs, self.reward.score(pairs, progress), strict=True)
        ]
        self.reward_s += perf_counter() - began
        size = self.group_size
        groups = [
            Group(task, tuple(group), tuple(scores[i * size : (i + 1) * size]))
            for i, (task, group) in enumerate(zip(tasks, rollouts, strict=True))
        ]
        everyone = peers.unshard(groups)
        self._check_failures(step, everyone)
        # What is normalised over a step is so over all ranks' rollouts: their number must not matter.
        return self.reward.settle(everyone, progress) if hasattr(self.reward, "settle") else everyone

    def _check_failures(self, step: int, groups: Sequence[Group]) -> None:
        total = sum(len(group.scores) for group in groups)
        failed = [
            f"task {group.task.id}, rollout {i + 1} of {len(group.scores)}: {score.reason}"
            for group in groups
            for i, score in enumerate(group.scores)
            if score.outcome == "failed"
        ]
        said = f"step {step + 1}: the reward failed on {len(failed)} of {total} rollouts"
        if len(failed) > self.max_failed * total:
            raise RuntimeError(
                f"{self.run.out.name} {said}, more than max_failed={self.max_failed:g} allows. First: {failed[0]}"
            )
        if failed:
            # The last line of a traceback says what was raised.
            first, *rest = failed[0].strip().splitlines()
            self.run.out.say(f"{said}; they are left out. First: {' … '.join([first, *rest[-1:]])}")


def measure(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the step's rollouts: reward, every term raw and weighted, length, share cut off, groups with signal.

    A term's raw mean is over the rollouts that it was asked about; the weighted means add up to the reward. A term that
    is called like one of the other figures (``length``) is ``raw/length``.
    """
    everything = [score for group in groups for score in group.scores]
    scored = [(r, s) for g in groups for r, s in zip(g.rollouts, g.scores, strict=True) if s.outcome == "scored"]
    names = sorted({name for _, s in scored for name in s.terms})
    weighted = sorted({name for _, s in scored for name in s.weighted})
    spread = [max(t) - min(t) > 1e-6 for g in groups if (t := [s.total for s in g.scores if s.outcome == "scored"])]
    by_family = {g.task.family for g in groups}
    figures = {
        "reward": mean([s.total for _, s in scored]),
        "length": mean([float(len(r.tokens)) for r, _ in scored]),
        "truncated": mean([float(r.finish == "length") for r, _ in scored]),
        "failed": mean([float(s.outcome == "failed") for s in everything]),
        "abstained": mean([float(s.outcome == "abstained") for s in everything]),
        "signal": mean([float(s) for s in spread]),
        **{
            f"reward/{family}": mean(
                [s.total for g in groups if g.task.family == family for s in g.scores if s.outcome == "scored"]
            )
            for family in sorted(by_family)
        },
    }
    raw = {name: mean([s.terms[name] for _, s in scored if name in s.terms]) for name in names}
    return {
        **{f"raw/{name}" if name in figures else name: value for name, value in raw.items()},
        **{f"weighted/{name}": mean([s.weighted.get(name, 0.0) for _, s in scored]) for name in weighted},
        **figures,
    }


def keep_verdicts(reward: Any, out: Out) -> None:
    """Keep what a judge answers where a resume finds it.

    Among the checkpoints: a stage that was interrupted is continued, not cleared, if there is something in them.
    """
    if hasattr(reward, "keep_in"):
        reward.keep_in(out.checkpoints / _VERDICTS, out.peers.rank)


def tell_facts(reward: Any, out: Out) -> None:
    """Say what the reward found out about the machine, and keep it beside the timings for the tracker."""
    if (facts := reward.facts() if hasattr(reward, "facts") else {}) and out.peers.is_main:
        out.say(", ".join(f"{name}: {value}" for name, value in facts.items()))
        out.logs.mkdir(parents=True, exist_ok=True)
        write_json(out.logs / "facts.json", facts)


def publish_verdicts(out: Out) -> None:
    """Make what judges answered a part of the artifact."""
    publish(out.checkpoints / _VERDICTS, out.path / _VERDICTS)


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
