"""The steps of one RL stage: what is drawn, trained, logged, saved and restored."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from components.artifacts import plain_json, write_json
from components.models.adapt import save_trained
from components.models.checkpoint import load_latest, save_checkpoint
from components.models.lora import Lora, load_trained_state, trained_state
from components.rng import stream
from components.rollout.record import rows, write_rows
from components.runtime import Out
from components.stages.rl_ahead import Ahead
from components.stages.rl_best import Best
from components.stages.rl_rounds import Rounds, measure, publish_verdicts
from components.stages.rl_update import Updater
from components.stages.shared import Policy
from components.types import Group, Task


@dataclass
class Run:
    """The moving parts of one RL stage: all that a checkpoint holds, and what is written of each step."""

    out: Out
    policy: Policy
    reference: Any
    updater: Updater
    curricula: Mapping[str, Any]
    quotas: Mapping[str, int]
    steps: int
    reward: Any
    checkpoint_every: int
    ahead: Ahead | None = None
    best: Best | None = None
    records: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)

    def train(self, rounds: Rounds, total: int) -> None:
        """All steps from the last checkpoint on."""
        out, network = self.out, self.policy.model
        first = self.restore()
        if self.ahead is not None and first < total:
            self._look_ahead(rounds, first)
        for step in range(first, total):
            began = perf_counter()
            sampled, used = rounds(step, self._version(step))
            seconds = {"rollout": perf_counter() - began - rounds.reward_s, "reward": rounds.reward_s}
            if self.ahead is not None or rounds.score_parts > 1:  # sampling and scoring overlap with other things
                seconds["rollout"] = rounds.sample_s
            if self.ahead is not None and step + 1 < total:
                self.ahead.publish()
                self._look_ahead(rounds, step + 1)
            between, figures = perf_counter(), {}
            if len(used) >= out.peers.world_size:
                policy = step >= self.updater.algorithm.critic_warmup
                figures = self.updater(out.peers.shard(used), len(used), policy=policy)
            if self.ahead is None:
                self.policy.engine.load(network.state_dict())
            self.refresh_reference(self.updates(step + 1))
            self.log(step, sampled, used, figures, {**seconds, "update": perf_counter() - between})
            stopping = out.should_stop()
            if stopping or (step + 1) % self.checkpoint_every == 0 or step + 1 == total:
                self.save(step + 1)
            if stopping and step + 1 < total:
                out.raise_if_stopping()

    def _look_ahead(self, rounds: Rounds, step: int) -> None:
        """Start the rollouts of a step; a checkpoint made meanwhile holds what is needed to start them again."""
        assert self.ahead is not None
        self.ahead.rest = copy.deepcopy(self._between_steps())
        rounds.begin(step, self._version(step))

    def _version(self, step: int) -> int:
        """Updates that the weights which sample a step have seen."""
        return self.updates(step if self.ahead is None else max(0, step - 1))

    def _between_steps(self) -> dict[str, Any]:
        """State that sampling and scoring change."""
        rest: dict[str, Any] = {"curricula": {name: curriculum.state() for name, curriculum in self.curricula.items()}}
        if hasattr(self.reward, "state"):
            rest["reward"] = self.reward.state()
        return rest

    def updates(self, step: int) -> int:
        """Steps of the policy among the first ``step`` steps."""
        return max(0, step - self.updater.algorithm.critic_warmup)

    def draw(self, address: tuple[int | str, ...]) -> list[Task]:
        """The prompts of one round, families spread evenly over processes and minibatches."""
        drawn = [task for name, n in self.quotas.items() for task in self.curricula[name].draw(n, (*address, name))]
        stream(*address, "order").shuffle(drawn)
        return drawn

    def observe(self, groups: Sequence[Group]) -> None:
        for curriculum in self.curricula.values():
            curriculum.observe(groups)

    def refresh_reference(self, step: int) -> None:
        """R1 replaces the reference by the policy every so many steps (arXiv:2501.12948)."""
        if self.reference is not None and self.updater.algorithm.refreshes_reference(step):
            self.reference.refresh(self.policy.model)

    def log(
        self,
        step: int,
        sampled: Sequence[Group],
        used: Sequence[Group],
        figures: Mapping[str, float],
        seconds: Mapping[str, float],
    ) -> None:
        """Metrics of the step; its rollouts are kept for the next checkpoint."""
        self.last = {**measure(sampled), "groups_used": float(len(used)), **figures}
        if self.best is not None and self.updates(step + 1) and "reward" in self.last:
            self.best.observe(step + 1, self.last["reward"], self.policy.model)
        tokens = sum(len(r.tokens) for group in sampled for r in group.rollouts)
        if self.out.peers.is_main:
            self.records[step + 1] = rows(sampled, step + 1)
        self.out.log(step + 1, {**self.last, **{f"seconds_{name}": value for name, value in seconds.items()}})
        shown = {name: self.last[name] for name in ("reward", "accuracy") if name in self.last}
        total = self.updater.algorithm.critic_warmup + self.steps
        self.out.progress(step + 1, total, **shown, tokens_per_s=tokens / max(1e-9, sum(seconds.values())))

    def save(self, step: int) -> None:
        """One checkpoint: weights, optimisers, reference, curricula; the rollouts since the last one first."""
        for number, kept in self.records.items():  # a file a step: the same files wherever checkpoints and stops fell
            write_rows(self.out.path / "rollouts" / f"step-{number:06d}.parquet", kept)
        self.records.clear()
        tensors, state = self.updater.learner.state()
        models = {"model": trained_state(self.policy.model), "learner": tensors}
        if self.reference is not None and self.updater.algorithm.ref_refresh_every:
            models["reference"] = self.reference.state()
        total = self.updater.algorithm.critic_warmup + self.steps
        under_way = self.ahead if step < total else None
        between = self._between_steps() if under_way is None else under_way.rest
        if under_way is not None and under_way.weights:
            models["sampler"] = under_way.weights
        rest = {
            "learner": state,
            "algorithm": self.updater.state,
            "last": plain_json(self.last),
            **between,
        }
        if (critic := self.updater.critic) is not None:
            tensors, rest["critic"] = critic.state()
            models |= tensors
        if self.best is not None:
            models["best"], rest["best"] = self.best.state()
        save_checkpoint(self.out, step, models, rest)

    def restore(self) -> int:
        """Continue from the last checkpoint, if there is one; returns the step to do next."""
        if (saved := load_latest(self.out)) is None:
            return 0
        if self.ahead is not None and "sampler" in saved.tensors:
            self.ahead.restore(saved.tensors["sampler"])
        load_trained_state(self.policy.model, saved.tensors["model"])
        if self.ahead is None:
            self.policy.engine.load(self.policy.model.state_dict())
        self.updater.learner.load_state(saved.tensors["learner"], saved.state["learner"])
        self.updater.state = saved.state["algorithm"]
        if self.updater.critic is not None:
            self.updater.critic.load_state(saved.tensors, saved.state["critic"])
        if "reference" in saved.tensors:
            self.reference.load_state(saved.tensors["reference"])
        for name, curriculum in self.curricula.items():
            curriculum.load_state(saved.state["curricula"][name])
        if "reward" in saved.state:
            self.reward.load_state(saved.state["reward"])
        if self.best is not None:
            self.best.load_state(saved.tensors["best"], saved.state["best"])
        self.last = saved.state["last"]
        return saved.step

    def close(self, lora: Lora | None, source: Path) -> dict[str, float]:
        """Write what later stages read; returns the metrics of the last step."""
        if self.best is not None and self.best.weights:
            self.out.say(f"publishing the weights of step {self.best.step}, mean reward {self.best.mean:.3f}")
            self.best.put_into(self.policy.model)
        if self.out.peers.is_main:
            write_json(self.out.path / "curriculum.json", {name: c.describe() for name, c in self.curricula.items()})
            publish_verdicts(self.out)
            save_trained(self.policy.model, self.policy.tokenizer, self.out.path, lora=lora, source=source)
        return {"steps": float(self.steps), **self.last}
