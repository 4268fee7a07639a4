"""The update of one RL step: advantages over the whole batch, then minibatches of micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from components.losses.policy import Algorithm
from components.losses.types import GlobalCounts
from components.models.learner import Learner
from components.models.logprobs import token_logprobs
from components.rng import stream
from components.rollout.batch import Batch, make_batch, micro_batches
from components.runtime import Out
from components.stages.shared import Policy
from components.types import Group


@dataclass(frozen=True)
class Update:
    """Settings of the update."""

    minibatches: int
    beta: float
    micro_batch_tokens: int
    pad: int


def policy_update(
    algorithm: Algorithm, policy: Policy, reference: Any, learner: Learner, groups: Sequence[Group], out: Out, step: int, update: Update
) -> dict[str, float]:
    """Optimiser steps on this step's groups; returns statistics of the whole batch, over all processes."""
    raise NotImplementedError
