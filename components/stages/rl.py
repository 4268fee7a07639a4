"""Stage: reinforcement learning with any `Algorithm` – the first round, and the second over all scenarios.

One step: draw prompts → sample G rollouts each → score → group rules → advantages → minibatches → optimiser steps →
curriculum observes → checkpoint. Every draw is addressed by (seed, stage, step, item), so that a run that was stopped
anywhere continues exactly as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from components.artifacts import plain_json, write_json
from components.losses.policy import Algorithm
from components.models.adapt import save_trained
from components.models.checkpoint import load_latest, save_checkpoint
from components.models.learner import Learner
from components.models.lora import Lora, load_trained_state, trained_state
from components.models.reference import make_reference
from components.models.schedule import linear
from components.rng import stream
from components.rollout.record import rows, write_rows
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.rl_best import Best
from components.stages.rl_critic import CriticSetup, make_critic
from components.stages.rl_rounds import Rounds, keep_verdicts, measure, publish_verdicts, start_curricula, tell_facts
from components.stages.rl_settings import rl_check as rl_check
from components.stages.rl_settings import rl_notes as rl_notes
from components.stages.rl_update import Updater
from components.stages.shared import Policy, load_trained_policy
from components.types import Group, Task

TAKES = {"model": "model", "data": "data", "profile": "profile?", "reward_model": "reward_model?"}
GIVES = ("model",)


def rl(
    inputs: Inputs,
    out: Out,
    *,
    algorithm: Algorithm,
    reward: Any,
    curriculum: Any,
    engine: Callable[..., Any],
    environment: Any,
    optimizer: Callable[..., Any],
    steps: int,
    quotas: Mapping[str, int],
    critic: CriticSetup | None = None,
    group_size: int | None = None,
    lr: float | None = None,
    lora: Lora | None = None,
    recompute: bool = False,
    lr_floor: float = 0.2,
    warmup: float = 0.06,
    minibatches: int = 2,
    beta: float = 0.0,
    max_new_tokens: int = 80,
    temperature: float | None = None,
    micro_batch_tokens: int = 8192,
    max_failed: float = 0.05,
    checkpoint_every: int = 5,
    publish: Literal["last", "best"] = "last",
    best_window: int = 10,
) -> dict[str, float]:
    """Train the policy on verifiable rewards; writes ``model/``, ``rollouts/`` and ``curriculum.json``.

    Args:
        reward: object with ``score(pairs, progress) -> list[Score]``; where it has them, ``settle(groups, progress)``
            sees the whole step, and ``keep_in(folder, rank)`` says where answers that were paid for are kept; one
            that remembers anything from step to step has ``state() -> JSON`` and ``load_state(state)``.
        curriculum: draws prompts; each quota has its own copy.
        optimizer: ``(named_parameters, lr=…)`` → optimiser.
        steps: of the policy; the critic's warm-up, if the algorithm has one, comes before them.
        quotas: prompts per step by task kind or family, e.g. ``{reasoning: 12, unsafe: 8}``; a step samples
            Σ quotas × group_size rollouts.
        critic: network and learning rate of the critic, where the algorithm has one.
        group_size, lr, temperature: None takes what goes with the algorithm (``algorithm.suggests``), else 8, 3e-4, 1.
        lora: train low-rank adapters beside frozen weights; the reference is then the model without them.
        recompute: activations instead of keeping them, see `load_trainable`.
        beta: KL coefficient against the starting policy, where the algorithm has a KL term without its own.
        minibatches: optimiser steps per rollout batch; the second and later ones are off-policy, hence the ratio.
        micro_batch_tokens: padded tokens per backward pass; does not change results beyond rounding.
        max_failed: share of rollouts of a step whose reward may fail before the stage stops.
        publish: the weights of the last step, or the best of each ``best_window`` steps by their mean reward.

    Raises:
        ValueError: a quota that matches no task; fewer prompts than processes.
        RuntimeError: too many failed rewards in a step, with the reward, the task and the cause.
        Interrupted: a stop was asked for; the step was finished and saved.
    """
    if algorithm.kl is None:
        beta = 0.0  # the stage's coefficient is for algorithms that have the term
    group_size = int(algorithm.suggested("group_size", group_size, 8))
    lr = algorithm.suggested("lr", lr, 3e-4)
    temperature = algorithm.suggested("temperature", temperature, 1.0)
    if problems := algorithm.check(beta=beta, group_size=group_size):
        raise ValueError(f"{out.name}.algorithm: {'; '.join(problems)}")
    prompts = sum(quotas.values())
    if prompts < out.peers.world_size:
        raise ValueError(
            f"{out.name}.quotas: {prompts} prompts a step for {out.peers.world_size} processes. Fix: raise them"
        )
    policy, source = load_trained_policy(inputs, engine, out, lora=lora, recompute=recompute), inputs["model"].path
    network = policy.model
    reference = make_reference(network, policy.decoder) if algorithm.needs_reference(beta) else None
    total = algorithm.critic_warmup + steps
    schedule = partial(linear, warmup=warmup, floor=lr_floor)
    trained = optimizer(network.named_parameters(), lr=lr)
    learner = Learner(network.named_parameters(), trained, partial(schedule, total=steps * minibatches), out.peers)
    updater = Updater(
        algorithm=algorithm,
        decoder=policy.decoder,
        reference=None if reference is None else reference.decoder,
        learner=learner,
        peers=out.peers,
        minibatches=minibatches,
        beta=beta,
        temperature=temperature,
        max_length=max_new_tokens,
        micro_batch_tokens=micro_batch_tokens,
        pad=policy.tokenizer.pad_token_id,
        critic=make_critic(
            algorithm,
            critic or CriticSetup(),
            policy,
            out,
            optimizer=optimizer,
            lr=lr,
            schedule=partial(schedule, total=total * minibatches),
            micro_batch_tokens=micro_batch_tokens,
        ),
        state=algorithm.initial_state(),
    )
    keep_verdicts(reward, out)
    tell_facts(reward, out)
    curricula = start_curricula(inputs, curriculum, quotas)
    run = _Run(out, policy, reference, updater, curricula, dict(quotas), steps, reward)
    run.best = Best(best_window) if publish == "best" else None
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    rounds = Rounds(run, reward, sampling, environment, group_size, max_failed)
    if algorithm.critic_warmup:
        out.say(f"critic warm-up: the first {algorithm.critic_warmup} of {total} steps leave the policy as it is")
    for step in range(run.restore(), total):
        began = perf_counter()
        sampled, used = rounds(step)
        between = perf_counter()
        figures = {}
        if len(used) >= out.peers.world_size:
            figures = updater(out.peers.shard(used), len(used), policy=step >= algorithm.critic_warmup)
        policy.engine.load(network.state_dict())
        run.refresh_reference(run.updates(step + 1))
        seconds = {"rollout": between - began - rounds.reward_s, "reward": rounds.reward_s}
        run.log(step, sampled, used, figures, {**seconds, "update": perf_counter() - between})
        stopping = out.should_stop()
        if stopping or (step + 1) % checkpoint_every == 0 or step + 1 == total:
            run.save(step + 1)
        if stopping and step + 1 < total:
            out.raise_if_stopping()
    return run.close(lora, source)


@dataclass
class _Run:
    """The moving parts of one RL stage: all that a checkpoint holds, and what is written of each step."""

    out: Out
    policy: Policy
    reference: Any
    updater: Updater
    curricula: Mapping[str, Any]
    quotas: Mapping[str, int]
    steps: int
    reward: Any
    best: Best | None = None
    records: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)

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
        curricula = {name: curriculum.state() for name, curriculum in self.curricula.items()}
        rest = {
            "learner": state,
            "curricula": curricula,
            "algorithm": self.updater.state,
            "last": plain_json(self.last),
        }
        if hasattr(self.reward, "state"):
            rest["reward"] = self.reward.state()
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
        load_trained_state(self.policy.model, saved.tensors["model"])
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
