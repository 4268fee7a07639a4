"""The critic of an RL stage: its network, the values it gives a batch, and its own updates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from components.losses import stats
from components.losses.aggregate import GlobalCounts
from components.losses.policy import Algorithm
from components.losses.value import Critic, summarise_values, value_loss, value_stats
from components.models.learner import Learner
from components.models.lora import Lora, has_adapters
from components.models.value_head import ValueModel
from components.rng import derive
from components.rollout.batch import Batch, micro_batches
from components.runtime import Out
from components.stages.shared import Policy


@dataclass(frozen=True, kw_only=True)
class CriticSetup:
    """What the critic is made of and how fast it learns; unused by algorithms without a critic.

    It shares no weights with the policy: its gradients are larger and noisier, and a value needs other features than
    the next token.

    Attributes:
        source: its network, an object with ``build(lines, seed) -> (model, tokenizer)`` such as
            `components.models.load.Pretrained`: a smaller model, or a reward model. None: a copy of the policy as it is
            at the start of the stage.
        lora: train low-rank adapters beside frozen weights.
        lr: base rate. None: twice the policy's (arXiv:2504.05118 §5.1).
        optimizer: ``(named_parameters, lr=…)`` → optimiser. None: as the policy's.
    """

    source: Any = None
    lora: Lora | None = None
    lr: float | None = None
    optimizer: Callable[..., Any] | None = None

    def network(self, policy: Policy, seed: int) -> Any:
        """A causal language model that reads the policy's tokens.

        Raises:
            ValueError: the source has another vocabulary.
        """
        if self.source is None:
            model = copy.deepcopy(policy.model)
        else:
            model, tokenizer = self.source.build([], seed)
            if tokenizer.get_vocab() != policy.tokenizer.get_vocab():
                raise ValueError(
                    f"critic.source: its tokenizer has {len(tokenizer)} tokens and is not the policy's "
                    f"({len(policy.tokenizer)} tokens); the critic reads the policy's tokens. "
                    "Fix: take a model of the same family, or leave critic.source null"
                )
        return self.lora.wrap(model, seed) if self.lora and not has_adapters(model) else model


@dataclass(frozen=True)
class Lesson:
    """What the critic learns from one batch of rollouts; fixed before the first update.

    Attributes:
        value: of the state before each token, 0 where masked.
        target: what the value should have been.
        mask: tokens in the loss.
    """

    batch: Batch
    value: Float[Tensor, "M C"]
    target: Float[Tensor, "M C"]
    mask: Bool[Tensor, "M C"]


@dataclass
class CriticTrainer:
    """The value model with its own optimiser; loss of a minibatch = coef · `value_loss`.

    Attributes:
        micro_batch_tokens: padded tokens per forward and backward pass; changes results by rounding only.
    """

    model: ValueModel
    settings: Critic
    learner: Learner
    micro_batch_tokens: int
    _seen: list[Mapping[str, float]] = field(default_factory=list)
    _figures: dict[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def values(self, batch: Batch) -> Float[Tensor, "M C"]:
        """Values of a whole batch, of the state before each token; 0 where masked."""
        value = torch.zeros_like(batch.logp_old)
        for groups in micro_batches(batch, range(len(batch.prompt_len)), self.micro_batch_tokens):
            part = batch.select(groups)
            value[batch.rows(groups), : part.ids.shape[1]] = self._forward(part)
        return value

    def step(self, lesson: Lesson, groups: Sequence[int], counts: GlobalCounts) -> None:
        """One update from these groups of this rank; ``counts`` are of the minibatch over all ranks."""
        parts = micro_batches(lesson.batch, groups, self.micro_batch_tokens)
        outcome = self.learner.step([partial(self._loss, lesson, part, counts) for part in parts])
        skipped = self._figures.get("critic_updates_skipped", 0.0) + (outcome.skipped == "nonfinite")
        self._figures = {
            "critic_lr": outcome.lr,
            "critic_grad_norm": outcome.grad_norm,
            "critic_updates_skipped": skipped,
        }

    def figures(self) -> dict[str, float]:
        """Of the updates since the last call, over all ranks."""
        merged = stats.merge(part for rank in self.learner.peers.gather(self._seen) for part in rank)
        figures = {**summarise_values(merged), **self._figures}
        self._seen, self._figures = [], {}
        return figures

    def _loss(self, lesson: Lesson, groups: list[int], counts: GlobalCounts) -> Tensor:
        rows, part = lesson.batch.rows(groups), lesson.batch.select(groups)
        width = part.ids.shape[1]
        old, target, mask = (x[rows, :width] for x in (lesson.value, lesson.target, lesson.mask))
        value, clip = self._forward(part), self.settings.clip
        self._seen.append(value_stats(value, old, target, mask, clip=clip))
        return self.settings.coef * value_loss(value, old, target, mask, counts, clip=clip)

    def _forward(self, part: Batch) -> Float[Tensor, "m C"]:
        return self.model(part.prompt_ids, part.prompt_len, part.ids, part.group, part.mask, part.length)

    def state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """(tensors by part, JSON): weights and optimiser."""
        tensors, state = self.learner.state()
        return {"critic": self.model.trained_state(), "critic_learner": tensors}, state

    def load_state(self, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.model.load_trained_state(tensors["critic"])
        self.learner.load_state(tensors["critic_learner"], state)


def make_critic(
    algorithm: Algorithm,
    setup: CriticSetup,
    policy: Policy,
    out: Out,
    *,
    optimizer: Callable[..., Any],
    lr: float,
    schedule: Callable[[int], float],
    micro_batch_tokens: int,
) -> CriticTrainer | None:
    """The critic, equal on every rank, if the algorithm needs one. ``optimizer`` and ``lr`` are the policy's."""
    if not algorithm.needs_critic or algorithm.critic is None:
        return None
    model = ValueModel(setup.network(policy, derive(out.seed, out.name, "critic")))
    make = setup.optimizer or optimizer
    trained = make(model.named_parameters(), lr=2 * lr if setup.lr is None else setup.lr)
    learner = Learner(model.named_parameters(), trained, schedule, out.peers)
    return CriticTrainer(model, algorithm.critic, learner, micro_batch_tokens)
