"""The update of one RL step: advantages over the whole batch, then minibatches of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from components.losses import mismatch, stats
from components.losses.aggregate import GlobalCounts
from components.losses.groups import outcomes
from components.losses.policy import Algorithm
from components.losses.turn_advantage import turn_rewards
from components.losses.value import value_targets
from components.models.learner import Learner
from components.models.logprobs import token_logprobs_and_entropy
from components.models.projections import to_device
from components.rollout.batch import Batch, make_batch, micro_batches
from components.runtime import Peers
from components.stages.rl_critic import CriticTrainer, Lesson
from components.types import Group


@dataclass
class Updater:
    """Turns scored groups into optimiser steps; knows the algorithm only through its interface.

    Attributes:
        decoder, reference: forward passes of the policy and, if there is a KL term, of the reference.
        critic: trained beside the policy on the same minibatches, if the algorithm needs one.
        minibatches: optimiser steps per rollout batch.
        beta: the stage's KL coefficient.
        max_length: token limit of a response.
        micro_batch_tokens: padded tokens per backward pass.
        state: the algorithm's own, from step to step.
    """

    algorithm: Algorithm
    decoder: Any
    reference: Any
    learner: Learner
    peers: Peers
    minibatches: int
    beta: float
    temperature: float
    max_length: int
    micro_batch_tokens: int
    pad: int
    critic: CriticTrainer | None = None
    state: dict[str, float] = field(default_factory=dict)

    def __call__(self, groups: Sequence[Group], total: int, *, policy: bool = True) -> dict[str, float]:
        """One update on this rank's groups, ``total`` over all ranks; returns figures of the whole update.

        Args:
            policy: False updates the critic alone.
        """
        step = _Step(self, make_batch(groups, self.pad), groups)
        seen: list[Mapping[str, float]] = []
        skipped, figures = 0, {}
        for number in range(self.minibatches):
            mine = [i for i in range(len(groups)) if self._minibatch(i, total) == number]
            counts = step.counts(mine)
            if policy:
                outcome = self.learner.step(step.losses(mine, counts, seen, first=number == 0))
                skipped += outcome.skipped == "nonfinite"
                figures = {"lr": outcome.lr, "grad_norm": outcome.grad_norm, "updates_skipped": float(skipped)}
            if self.critic is not None and step.lesson is not None:
                self.critic.step(step.lesson, mine, counts)
        merged = stats.merge(part for rank in self.peers.gather(seen) for part in rank)
        self.state = dict(self.algorithm.observe(self.state, merged))
        critic = {} if self.critic is None else self.critic.figures()
        return {**stats.summarise(merged), **figures, **critic, **self.state}

    def _minibatch(self, position: int, total: int) -> int:
        """Minibatch of a local group: consecutive blocks of the (shuffled) step, whatever the number of ranks."""
        return (position * self.peers.world_size + self.peers.rank) * self.minibatches // total

    def logp(self, decoder: Any, batch: Batch) -> tuple[Float[Tensor, "M C"], Float[Tensor, "M C"] | None]:
        """Log-probability (and entropy, if the algorithm asks for it) of every trained token, 0 elsewhere."""
        hidden = decoder.hidden_shared(
            batch.prompt_ids, batch.prompt_len, batch.ids, batch.group, batch.length.clamp(min=1)
        )
        flat, entropy = token_logprobs_and_entropy(
            hidden[batch.mask],
            decoder.head,
            batch.ids[batch.mask],
            temperature=self.temperature,
            entropy=self.algorithm.needs_entropy,
        )
        spread = partial(torch.zeros(batch.ids.shape).masked_scatter, batch.mask)
        flat, entropy = to_device(batch.mask.device, flat, entropy)  # what is computed of them is small
        return spread(flat), spread(entropy) if self.algorithm.needs_entropy else None


class _Step:
    """What one update computes once for all of its minibatches."""

    def __init__(self, updater: Updater, batch: Batch, groups: Sequence[Group]) -> None:
        self.updater, self.batch = updater, batch
        algorithm, found = updater.algorithm, outcomes(groups)
        valid, self.positive = found.valid, found.correct
        self.ref_logp = None if updater.reference is None else self._logp(updater.reference)
        # The trainer's own log-probabilities of the sampling policy, for a correction of the engine's; else the
        # engine's are taken for them, and the first minibatch shows how far the two are apart.
        self.own_logp = None if algorithm.mismatch is None else self._logp(updater.decoder)
        reward = algorithm.shape_rewards(found.reward, batch.length, updater.max_length)
        value = None if updater.critic is None else updater.critic.values(batch)
        sampled = batch.logp_old if self.own_logp is None else self.own_logp
        given = {"mask": batch.mask, "logp": sampled, "ref_logp": self.ref_logp, "beta": updater.beta}
        self.advantage = algorithm.advantages(
            reward,
            batch.group,
            valid,
            value=value,
            turn_reward=turn_rewards(groups) if algorithm.needs_turns else None,
            all_reduce=updater.peers.all_reduce,
            **given,
        )
        self.mask = algorithm.loss_mask(batch.mask, found.truncated)
        self.lesson: Lesson | None = None
        if value is not None:
            target = value_targets(algorithm, reward, valid, value=value, **given)
            self.lesson = Lesson(batch, value, target, self.mask)

    def counts(self, groups: Sequence[int]) -> GlobalCounts:
        """Denominators of the minibatch of which this rank has these groups; every rank calls it."""
        rows = self.batch.rows(groups) if groups else torch.zeros(0, dtype=torch.long)
        local = GlobalCounts.of(self.mask[rows], max_length=self.updater.max_length, positive=self.positive[rows])
        return GlobalCounts.merge(self.updater.peers.gather(local))

    def losses(
        self, groups: Sequence[int], counts: GlobalCounts, seen: list[Mapping[str, float]], *, first: bool
    ) -> list[Callable[[], Tensor]]:
        """One closure per micro-batch of these groups; each appends its statistics to ``seen`` when called.

        Args:
            first: the policy is still the one that sampled.
        """
        useful = [group for group in groups if self._matters(group)]
        parts = micro_batches(self.batch, useful, self.updater.micro_batch_tokens)
        return [partial(self._loss, part, counts, seen, first) for part in parts]

    def _matters(self, group: int) -> bool:
        """Whether a group moves the weights: a group without signal does only through terms that are not advantages."""
        algorithm = self.updater.algorithm
        others = self.ref_logp is not None or algorithm.needs_entropy or algorithm.positive_nll > 0
        return others or bool(self.advantage[self.batch.rows([group])].any())

    def _loss(self, groups: list[int], counts: GlobalCounts, seen: list[Mapping[str, float]], first: bool) -> Tensor:
        updater, rows, part = self.updater, self.batch.rows(groups), self.batch.select(groups)
        logp, entropy = updater.logp(updater.decoder, part)
        width = part.ids.shape[1]
        loss, figures = updater.algorithm.loss(
            logp,
            part.logp_old if self.own_logp is None else self.own_logp[rows, :width],
            self.advantage[rows] if self.advantage.ndim == 1 else self.advantage[rows, :width],
            self.mask[rows, :width],
            counts=counts,
            beta=updater.beta,
            ref_logp=None if self.ref_logp is None else self.ref_logp[rows, :width],
            entropy=entropy,
            logp_engine=None if self.own_logp is None else part.logp_old,
            positive=self.positive[rows],
            state=updater.state or None,
        )
        if first and self.own_logp is None:
            figures |= stats.to_floats(mismatch.gap(logp.detach(), part.logp_old, part.mask))
        seen.append(figures)
        return loss

    @torch.no_grad()
    def _logp(self, decoder: Any) -> Float[Tensor, "M C"]:
        """Log-probabilities of the whole batch under some weights."""
        updater, batch = self.updater, self.batch
        logp = torch.zeros_like(batch.logp_old)
        everything = range(len(batch.prompt_len))
        for part in micro_batches(batch, everything, updater.micro_batch_tokens):
            chosen = batch.select(part)
            logp[batch.rows(part), : chosen.ids.shape[1]] = updater.logp(decoder, chosen)[0]
        return logp
