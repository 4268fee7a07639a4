"""Stage: reinforcement learning with a GRPO-family algorithm – the first round, and the second over all scenarios.

One step: draw prompts → sample G rollouts each → score → group rules → advantages → minibatches → optimiser steps →
curriculum observes → checkpoint. Every draw is addressed by (seed, stage, step, item), so that a run that was stopped
anywhere continues exactly as if it had not been.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from components.models.checkpoint import load_latest, save_checkpoint
from components.models.decoder import make_decoder
from components.models.learner import Learner
from components.models.load import save_model
from components.models.optim import make_optimizer
from components.models.schedule import linear
from components.rng import stream
from components.rollout.protocol import Sampling
from components.rollout.record import rows, write_rows
from components.runtime import Inputs, Out
from components.stages.rl_update import Update, policy_update
from components.stages.shared import Policy, load_policy, mean, read_tasks
from components.types import Group, Task


def rl(
    inputs: Inputs,
    out: Out,
    *,
    algorithm: Any,
    reward: Any,
    curriculum: Callable[..., Any],
    engine: Callable[..., Any],
    environment: Any,
    steps: int,
    quotas: Mapping[str, int],
    group_size: int = 8,
    lr: float = 3e-4,
    lr_floor: float = 0.2,
    warmup_steps: int = 5,
    minibatches: int = 2,
    beta: float = 0.0,
    max_new_tokens: int = 80,
    temperature: float = 1.0,
    weight_decay: float = 0.0,
    micro_batch_tokens: int = 8192,
    max_failed: float = 0.05,
    checkpoint_every: int = 5,
) -> dict[str, float]:
    """Train the policy on verifiable rewards; writes ``model/``, ``rollouts/`` and ``curriculum.json``.

    Args:
        reward: object with ``score(pairs, progress) -> list[Score]``.
        curriculum: makes a fresh curriculum; one is kept for each quota.
        quotas: prompts per step by task kind or family, e.g. ``{reasoning: 12, unsafe: 8}``; batch = Σ quotas × group_size.
        beta: KL coefficient against the starting policy, where the algorithm does not set its own.
        minibatches: optimiser steps per rollout batch; the second and later ones are off-policy, hence the ratio.
        micro_batch_tokens: padded tokens per backward pass; does not change results beyond rounding.
        max_failed: share of rollouts of a step whose reward may fail before the stage stops.

    Raises:
        ValueError: a quota that matches no task.
        RuntimeError: too many failed rewards in a step, with the reward, the task and the cause.
        Interrupted: a stop was asked for; the step was finished and saved.
    """
    policy = load_policy(inputs, engine)
    beta = beta if algorithm.beta is None else algorithm.beta
    reference = make_decoder(copy.deepcopy(policy.model).requires_grad_(False)) if beta > 0 else None
    run = Run(inputs, out, policy, algorithm, reward, _curricula(inputs, curriculum, quotas), dict(quotas))
    learner = Learner(
        policy.model.named_parameters(),
        optimizer=make_optimizer("adamw", policy.model, lr=lr, weight_decay=weight_decay, betas=(0.9, 0.99)),
        schedule=linear(steps * minibatches, warmup=warmup_steps * minibatches, floor=lr_floor),
        peers=out.peers,
    )
    start = run.restore(learner)
    update = Update(minibatches, beta, micro_batch_tokens, policy.tokenizer.pad_token_id)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    for step in range(start, steps):
        began = perf_counter()
        groups = run.rollouts(step, group_size, sampling, environment, step / steps, max_failed)
        sampled = perf_counter()
        stats = policy_update(algorithm, policy, reference, learner, groups, out, step, update)
        policy.engine.load(policy.model)
        run.finish_step(step, groups, stats, {"seconds_rollout": sampled - began, "seconds_update": perf_counter() - sampled}, steps)
        if (step + 1) % checkpoint_every == 0 or step + 1 == steps or out.should_stop():
            run.save(step + 1, learner)
            if step + 1 < steps:
                out.raise_if_stopping()
    return run.close(steps)


@dataclass
class Run:
    """The moving parts of one RL stage besides the weights."""

    inputs: Inputs
    out: Out
    policy: Policy
    algorithm: Any
    reward: Any
    curricula: Mapping[str, Any]
    quotas: Mapping[str, int]
    records: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, float] = field(default_factory=dict)

    def rollouts(
        self, step: int, group_size: int, sampling: Sampling, environment: Any, progress: float, max_failed: float
    ) -> list[Group]:
        """This rank's groups of the step, scored."""
        address = (self.out.seed, self.out.name, step)
        drawn = [task for name, n in self.quotas.items() for task in self.curricula[name].draw(n, (*address, name))]
        stream(*address, "order").shuffle(drawn)  # families spread evenly over processes and minibatches
        tasks: list[Task] = self.out.peers.shard(drawn)
        rollouts = self.policy.sample(tasks, group_size, sampling, environment, address, step)
        pairs = [(task, rollout) for task, group in zip(tasks, rollouts, strict=True) for rollout in group]
        scores = self.reward.score(pairs, progress)
        self._check_failures(step, pairs, scores, max_failed)
        size = group_size
        return [
            Group(task, tuple(rollouts[i]), tuple(scores[i * size : (i + 1) * size])) for i, task in enumerate(tasks)
        ]

    def _check_failures(self, step: int, pairs: Sequence[Any], scores: Sequence[Any], max_failed: float) -> None:
        mine = [(task.id, s.reason) for (task, _), s in zip(pairs, scores, strict=True) if s.outcome == "failed"]
        failed = [item for part in self.out.peers.gather(mine) for item in part]
        total = self.out.peers.sum(len(scores))
        if failed and len(failed) > max_failed * total:
            task_id, reason = failed[0]
            raise RuntimeError(
                f"{self.out.name} step {step}: the reward failed on {len(failed)} of {total:.0f} rollouts, more than "
                f"max_failed={max_failed:g} allows. First: task {task_id}: {reason}"
            )

    def finish_step(self, step: int, groups: list[Group], stats: Mapping[str, float], seconds: Mapping[str, float], steps: int) -> None:
        """Let the curricula observe, log the step, keep its rollouts for the next checkpoint."""
        everyone = self.out.peers.unshard(groups)
        for curriculum in self.curricula.values():
            curriculum.observe(everyone)
        measured = {**_measure(everyone), **stats, **seconds}
        tokens = sum(len(r.tokens) for g in everyone for r in g.rollouts)
        self.records += rows(everyone, step)
        self.history = measured
        self.out.log(step + 1, measured)
        speed = tokens / max(1e-9, seconds["seconds_rollout"] + seconds["seconds_update"])
        self.out.progress(
            step + 1, steps, reward=measured["reward"], accuracy=measured.get("accuracy", 0.0), tokens_per_s=speed
        )

    def save(self, step: int, learner: Learner) -> None:
        """Checkpoint: weights, optimiser, curricula. The rollouts since the last one are written first."""
        if self.out.peers.is_main and self.records:
            write_rows(self.out.path / "rollouts" / f"step-{step:06d}.parquet", self.records)
        self.records.clear()
        tensors, state = learner.state()
        curricula = {name: curriculum.state() for name, curriculum in self.curricula.items()}
        save_checkpoint(
            self.out,
            step,
            {"model": self.policy.model.state_dict(), "learner": tensors},
            {"learner": state, "curricula": curricula, "algorithm": self.algorithm.state(), "history": self.history},
        )

    def restore(self, learner: Learner) -> int:
        """Continue from the last checkpoint, if there is one; returns the step to do next."""
        if (saved := load_latest(self.out)) is None:
            return 0
        self.policy.model.load_state_dict(saved.tensors["model"])
        self.policy.engine.load(self.policy.model)
        learner.load_state(saved.tensors["learner"], saved.state["learner"])
        for name, curriculum in self.curricula.items():
            curriculum.load_state(saved.state["curricula"][name])
        self.algorithm.load_state(saved.state["algorithm"])
        self.history = saved.state["history"]
        return saved.step

    def close(self, steps: int) -> dict[str, float]:
        """Write what the next stages read; returns the metrics of the last step."""
        if self.out.peers.is_main:
            from components.artifacts import write_json

            write_json(self.out.path / "curriculum.json", {name: c.describe() for name, c in self.curricula.items()})
            save_model(self.policy.model, self.policy.tokenizer, self.out.path / "model")
        return {"steps": float(steps), **{k: v for k, v in self.history.items() if not k.startswith("seconds_")}}


def _curricula(inputs: Inputs, make: Callable[..., Any], quotas: Mapping[str, int]) -> dict[str, Any]:
    """One curriculum per quota, started from the profile's pass rates where there is a profile."""
    from components.artifacts import read_json

    profile = read_json(inputs["profile"].path / "profile.json") if "profile" in inputs else {}
    rates = {cell: entry["pass_rate"] for cell, entry in profile.items()}
    tasks = read_tasks(inputs, "train")
    curricula = {}
    for name in quotas:
        mine = [task for task in tasks if name in (task.kind, task.family)]
        if not mine:
            known = sorted({task.kind for task in tasks} | {task.family for task in tasks})
            raise ValueError(f"quotas.{name}: no such tasks in the data. Fix: one of {', '.join(known)}")
        curricula[name] = make()
        curricula[name].start(mine, rates)
    return curricula


def _measure(groups: Sequence[Group]) -> dict[str, float]:
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
