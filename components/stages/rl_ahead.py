"""Sampling one step ahead: the rollouts of a step are drawn while the update of the step before is computed.

The policy that samples is then one update behind the one that is trained, which the loss corrects for by truncated
importance sampling (`components.losses.mismatch.tis`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from components.losses import mismatch
from components.losses.policy import Algorithm
from components.models.lora import load_trained_state, trained_state
from components.stages.shared import Policy, make_policy

CAP = 2.0


def corrected(algorithm: Algorithm, level: int) -> Algorithm:
    """The algorithm, with a correction for rollouts of an older policy where it has none and they are older."""
    if level not in (0, 1):
        raise ValueError(f"async_level must be 0 (on policy) or 1 (one step behind), got {level}")
    if level == 0 or algorithm.mismatch is not None:
        return algorithm
    return replace(algorithm, mismatch=partial(mismatch.tis, cap=CAP))


def apart(policy: Policy, engine: Callable[..., Any], level: int) -> Policy:
    """The policy, with an engine on weights of its own where it samples beside the training.

    Engines that keep their weights elsewhere say so (``own_weights``).
    """
    if level == 0 or getattr(policy.engine, "own_weights", False):
        return policy
    sampler = make_policy(copy.deepcopy(policy.model).requires_grad_(False), policy.tokenizer, engine)
    return replace(policy, engine=sampler.engine)


@dataclass
class Ahead:
    """What a checkpoint needs to draw the rollouts that were under way once more.

    Attributes:
        weights: those that sample; empty before the first update.
        rest: curricula and reward as they were before the prompts were drawn.
    """

    policy: Policy
    weights: dict[str, Tensor] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    def publish(self) -> None:
        """Sample from the policy's present weights from now on."""
        self.weights = {name: tensor.detach().clone() for name, tensor in trained_state(self.policy.model).items()}
        self.policy.engine.load(self.policy.model.state_dict())

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Sample from the weights of a checkpoint; the policy has them too until it gets its own."""
        load_trained_state(self.policy.model, weights)
        self.publish()
