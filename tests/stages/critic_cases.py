"""Groups, a critic and an updater on a real small model, without a run around them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from components.losses import advantage, aggregate, ratio, surrogate
from components.losses.policy import Algorithm
from components.losses.value import Critic
from components.models.decoder import make_decoder
from components.models.learner import Learner
from components.models.load import load_model
from components.models.schedule import constant
from components.models.value_head import ValueModel
from components.rollout.batch import make_batch
from components.runtime import Peers
from components.stages.rl_critic import CriticTrainer
from components.stages.rl_update import Updater, _Step
from components.types import Group, Message, Rollout, Score, Task


class Descent:
    """Plain gradient descent: rounding stays rounding, where Adam would blow up that of tiny gradients."""

    lr = 0.05

    def __init__(self, named: Any, *, lr: float | None = None) -> None:
        self.named = {name: p for name, p in named if p.requires_grad}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], multiplier: float, peers: Peers) -> None:
        for name, p in self.named.items():
            p -= self.lr * multiplier * gradients[name]

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        assert not tensors


def make_groups(rewards: Sequence[Sequence[float]], seed: int = 0) -> list[Group]:
    """Groups of random tokens, of several lengths, a third of the tokens not the policy's own."""
    draw = random.Random(seed)
    groups = []
    for number, row in enumerate(rewards):
        prompt = tuple(draw.randrange(5, 200) for _ in range(3 + 2 * number))
        rollouts = []
        for _ in row:
            n = draw.randrange(3, 10)
            own = (True, *(draw.random() < 0.67 for _ in range(n - 2)), True)
            logp = tuple(-1.0 if o else 0.0 for o in own)
            tokens = tuple(draw.randrange(5, 200) for _ in range(n))
            rollouts.append(Rollout(str(number), prompt, tokens, own, logp, "", "stop"))
        task = Task(str(number), (Message("user", "?"),), None, "exact")
        groups.append(Group(task, tuple(rollouts), tuple(Score(r, {"accuracy": float(r >= 1)}) for r in row)))
    return groups


def make_trainer(
    folder: Path, *, optimizer: Callable[..., Any] = Descent, micro: int = 10_000, random_head: bool = True, **settings
) -> CriticTrainer:
    model = ValueModel(load_model(folder / "model")[0])
    if random_head:
        with torch.no_grad():
            model.head.weight.copy_(torch.linspace(-0.3, 0.3, model.head.weight.numel())[None])
            model.head.bias.fill_(0.1)
    trained = optimizer(model.named_parameters(), lr=1e-2)
    learner = Learner(model.named_parameters(), trained, partial(constant, total=1000), max_grad_norm=None)
    return CriticTrainer(model, Critic(**settings), learner, micro)


def make_updater(folder: Path, algorithm: Algorithm, trainer: CriticTrainer | None, minibatches: int = 1) -> Updater:
    model = load_model(folder / "model")[0]
    learner = Learner(model.named_parameters(), Descent(model.named_parameters()), partial(constant, total=1000))
    return Updater(
        algorithm=algorithm,
        decoder=make_decoder(model),
        reference=None,
        learner=learner,
        peers=Peers(),
        minibatches=minibatches,
        beta=0.0,
        temperature=1.0,
        max_length=12,
        micro_batch_tokens=10_000,
        pad=0,
        critic=trainer,
        state=algorithm.initial_state(),
    )


def simple(critic: Critic | None = None, **gae: Any) -> Algorithm:
    return Algorithm(
        advantage=partial(advantage.gae, **gae),
        ratio=ratio.token,
        surrogate=surrogate.clip,
        aggregate=aggregate.token_mean,
        critic=critic or Critic(),
    )


def step_of(folder: Path, algorithm: Algorithm, trainer: CriticTrainer, groups: list[Group]) -> _Step:
    return _Step(make_updater(folder, algorithm, trainer), make_batch(groups, 0), groups)


REWARDS = [[1.0, 0.0, 0.5], [1.2, 1.0, 0.0], [0.3, 0.3, 0.3], [0.0, 1.1, 0.2]]
