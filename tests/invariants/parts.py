"""Components for invariants: what they compute shows a difference that the real ones would hide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from components.runtime import Peers


class PlainDescent:
    """w ← w - lr·g: the weights then differ exactly as the gradients do. AdamW and Muon normalise a wrong scale away.

    Args:
        lr: of every step, whatever the schedule says.
    """

    def __init__(self, named: Iterable[tuple[str, Parameter]], *, lr: float) -> None:
        self.lr, self.parameters = lr, dict(named)

    def step(self, gradients: Mapping[str, Tensor], multiplier: float, peers: Peers) -> None:
        with torch.no_grad():
            for name, gradient in gradients.items():
                self.parameters[name] -= self.lr * gradient

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        pass


def even(task: Any, rollout: Any) -> float:
    """1.0 for a response of an even number of tokens: about half of any group, so that every group has signal."""
    return float(len(rollout.tokens) % 2 == 0)


def parity(task: Any, rollout: Any) -> float:
    """1.0 where the sum of the token ids is even: half of any group, whatever the policy has learned."""
    return float(sum(rollout.tokens) % 2 == 0)


def digits(task: Any, rollout: Any) -> float:
    """One tenth for every digit of the response."""
    return sum(char.isdigit() for char in rollout.response) / 10
