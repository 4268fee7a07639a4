"""The best weights of an RL stage so far, for policies that may get worse again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from components.models.lora import load_trained_state, trained_state


@dataclass
class Best:
    """Keeps the weights at the end of the ``window`` steps with the highest mean reward; of equals the first.

    It is looked at after each ``window`` steps of the policy. The highest of noisy means flatters: how good the weights
    are is for an evaluation to say.
    """

    window: int
    step: int = 0
    mean: float = 0.0
    weights: dict[str, Tensor] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)

    def observe(self, step: int, reward: float, model: nn.Module) -> None:
        """``reward``: mean over the rollouts of the step that led to ``model``."""
        self.rewards.append(reward)
        if len(self.rewards) < self.window:
            return
        mean = sum(self.rewards) / self.window
        self.rewards = []
        if not self.weights or mean > self.mean:
            self.step, self.mean = step, mean
            self.weights = {name: tensor.detach().cpu().clone() for name, tensor in trained_state(model).items()}

    def put_into(self, model: nn.Module) -> None:
        """Give the model the best weights; before the first ``window`` steps there are none, and it stays as it is."""
        if self.weights:
            load_trained_state(model, self.weights)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.weights, {"step": self.step, "mean": self.mean, "rewards": self.rewards}

    def load_state(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.weights = dict(weights)
        self.step, self.mean, self.rewards = state["step"], state["mean"], list(state["rewards"])
