"""Stage: reinforcement learning with any `Algorithm` – the first round, and the second over all scenarios.

One step: draw prompts → sample G rollouts each → score → group rules → advantages → minibatches → optimiser steps →
curriculum observes → checkpoint. Every draw is addressed by (seed, stage, step, item), so that a run that was stopped
anywhere continues exactly as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from components.losses.policy import Algorithm
from components.models.learner import Learner
from components.models.lora import Lora
from components.models.reference import make_reference
from components.models.schedule import linear
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.rl_ahead import Ahead, apart, corrected
from components.stages.rl_best import Best
from components.stages.rl_critic import CriticSetup, make_critic
from components.stages.rl_rounds import Rounds, keep_verdicts, start_curricula, tell_facts
from components.stages.rl_run import Run
from components.stages.rl_settings import rl_check as rl_check
from components.stages.rl_settings import rl_measures as rl_measures
from components.stages.rl_settings import rl_notes as rl_notes
from components.stages.rl_update import Updater
from components.stages.shared import load_trained_policy

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
    async_level: int = 0,
    score_parts: int = 1,
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
        async_level: 1 samples and scores the next step while this one's update is computed, from weights that are one
            update behind; the loss then weighs by `tis` unless the algorithm has a correction of its own. It costs a
            second copy of the weights and pays where an engine or a reward has a device or processes of its own.
        score_parts: prompts of a step are sampled in so many parts, and a part is scored while the next is sampled;
            changes no result. It pays where scoring takes as long as sampling.
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
    algorithm = corrected(algorithm, async_level)
    prompts = sum(quotas.values())
    if prompts < out.peers.world_size:
        raise ValueError(
            f"{out.name}.quotas: {prompts} prompts a step for {out.peers.world_size} processes. Fix: raise them"
        )
    policy, source = load_trained_policy(inputs, engine, out, lora=lora, recompute=recompute), inputs["model"].path
    policy = apart(policy, engine, async_level)
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
    ahead = Ahead(policy) if async_level else None
    run = Run(out, policy, reference, updater, curricula, dict(quotas), steps, reward, checkpoint_every, ahead)
    run.best = Best(best_window) if publish == "best" else None
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    rounds = Rounds(run, reward, sampling, environment, group_size, max_failed, score_parts)
    if algorithm.critic_warmup:
        out.say(f"critic warm-up: the first {algorithm.critic_warmup} of {total} steps leave the policy as it is")
    try:
        run.train(rounds, total)
    finally:
        rounds.close()
    return run.close(lora, source)
