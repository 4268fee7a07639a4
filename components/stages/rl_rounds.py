"""The first half of an RL step: draw prompts, sample, score – in one round, or with dynamic sampling in several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch

from components.artifacts import read_json, write_json
from components.curriculum.dynamic import keep_informative
from components.rewards.verdicts import publish
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.shared import mean, read_tasks
from components.types import Group, Rollout, Score, Task

_VERDICTS = "verdicts"
# What the environment broke says nothing of the policy: left out and counted, never trained on as a wrong answer.
_BROKEN = Score(0.0, {}, "failed", "the environment failed; the worker's log says how")
_LATE = Score(0.0, {}, "failed", "the environment did not answer in time; the worker's log says where")


@dataclass(frozen=True)
class _Drawn:
    """One round under way: this rank's tasks, how far training is, and what gives their rollouts and scores."""

    tasks: list[Task]
    progress: float
    result: Callable[[], tuple[list[tuple[Rollout, ...]], list[Score]]]


@dataclass
class Rounds:
    """Sampling and scoring of one step: one round, or with dynamic sampling as many as fill the batch.

    Attributes:
        score_parts: the prompts of a round are sampled in so many parts, and a part is scored while the next decodes.
        sample_s, reward_s: seconds that sampling and scoring of the last step took.
    """

    run: Any
    reward: Any
    sampling: Sampling
    environment: Any
    group_size: int
    max_failed: float
    score_parts: int = 1
    sample_s: float = 0.0
    reward_s: float = 0.0
    _ahead: _Drawn | None = None
    _pools: list[ThreadPoolExecutor] = field(default_factory=list)

    def begin(self, step: int, version: int) -> None:
        """Draw the first round of a step and sample and score it in another thread, until it is called for.

        No process talks to another meanwhile, so that they do so in one order whatever each is faster at.

        Args:
            version: updates that the sampling weights have seen.
        """
        drawn = self._draw(step, 0, version)
        future: Future[Any] = self._pool(0).submit(drawn.result)
        self._ahead = _Drawn(drawn.tasks, drawn.progress, future.result)

    def __call__(self, step: int, version: int | None = None) -> tuple[list[Group], list[Group]]:
        """(all groups sampled, the groups to train on), the same on every rank.

        Args:
            version: as in `begin`; None: those before this step.
        """
        wanted, extra = sum(self.run.quotas.values()), self.run.updater.algorithm.dynamic_sampling
        seen = self.run.updates(step) if version is None else version
        if self._ahead is None:
            self.sample_s = self.reward_s = 0.0
        sampled: list[Group] = []
        used: list[Group] = []
        for number in range(1 + extra):
            drawn, self._ahead = self._ahead or self._draw(step, number, seen), None
            groups = self._finish(step, drawn)
            self.run.observe(groups)
            sampled += groups
            used += keep_informative(groups)[0] if extra else groups
            if len(used) >= wanted:
                break
        if len(used) < wanted:
            self.run.out.say(f"step {step + 1}: {len(used)} of {wanted} groups have signal after {1 + extra} rounds")
        return sampled, used[:wanted]

    def close(self) -> None:
        """Wait for what is under way."""
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def _draw(self, step: int, number: int, version: int) -> _Drawn:
        run = self.run
        address = (run.out.seed, run.out.name, step, number)
        tasks = run.out.peers.shard(run.draw(address))
        progress = run.updates(step) / run.steps
        return _Drawn(tasks, progress, partial(self._sample_and_score, tasks, address, version, progress, number == 0))

    def _sample_and_score(
        self, tasks: list[Task], address: tuple[int | str, ...], version: int, progress: float, first: bool
    ) -> tuple[list[tuple[Rollout, ...]], list[Score]]:
        if first:
            self.sample_s = self.reward_s = 0.0
        size = max(1, -(-len(tasks) // self.score_parts))
        rollouts: list[tuple[Rollout, ...]] = []
        scores: list[Callable[[], list[Score]]] = []
        for start in range(0, len(tasks), size):
            part, began = tasks[start : start + size], perf_counter()
            drawn = self.run.policy.sample(part, self.group_size, self.sampling, self.environment, address, version)
            self.sample_s += perf_counter() - began
            rollouts += drawn
            pairs = [(task, rollout) for task, group in zip(part, drawn, strict=True) for rollout in group]
            if self.score_parts == 1:
                found = self._score(pairs, progress)
                scores.append(lambda found=found: found)
            else:
                scores.append(self._pool(1).submit(self._score, pairs, progress).result)
        return rollouts, [score for part in scores for score in part()]

    def _score(self, pairs: Sequence[tuple[Task, Rollout]], progress: float) -> list[Score]:
        began = perf_counter()
        scores = [
            _LATE if rollout.finish == "timeout" else _BROKEN if rollout.finish == "failed" else score
            for (_, rollout), score in zip(pairs, self.reward.score(pairs, progress), strict=True)
        ]
        self.reward_s += perf_counter() - began
        return scores

    def _finish(self, step: int, drawn: _Drawn) -> list[Group]:
        rollouts, scores = drawn.result()
        size = self.group_size
        groups = [
            Group(task, tuple(group), tuple(scores[i * size : (i + 1) * size]))
            for i, (task, group) in enumerate(zip(drawn.tasks, rollouts, strict=True))
        ]
        everyone = self.run.out.peers.unshard(groups)
        self._check_failures(step, everyone)
        # What is normalised over a step is so over all ranks' rollouts: their number must not matter.
        return self.reward.settle(everyone, drawn.progress) if hasattr(self.reward, "settle") else everyone

    def _pool(self, number: int) -> ThreadPoolExecutor:
        """A thread for sampling ahead, another for scoring; with as many threads for products as this one has."""
        while len(self._pools) <= number:
            initializer = partial(torch.set_num_threads, torch.get_num_threads())
            self._pools.append(ThreadPoolExecutor(1, initializer=initializer))
        return self._pools[number]

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
