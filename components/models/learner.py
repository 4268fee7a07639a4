"""The one optimiser loop: pretraining, SFT, reward model and RL give it losses, it makes steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from components.models.optim import Optimizer
from components.runtime import Peers

Loss = Callable[[], Tensor]

# A norm beyond this is a broken batch, not a steep one: clipped, its direction would still be taken at full length.
ABSURD_NORM = 1e8


class TrainingDiverged(RuntimeError):
    """Several updates in a row had no usable gradient; weights and optimiser are those of the last good one."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """One update, equal on every rank.

    Attributes:
        loss: sum of the micro-batches' losses over all ranks (they are divided by global counts already).
        grad_norm: global 2-norm before clipping.
        lr: learning rate of the update.
        skipped: why weights and optimiser were left alone: "empty" (no micro-batch on any rank), "nonfinite", or "".
    """

    loss: float
    grad_norm: float
    lr: float
    skipped: Literal["", "empty", "nonfinite"] = ""


class Learner:
    """Gradient accumulation, data-parallel sum, clipping, a guard against bad steps, and the schedule.

    Gradients are summed in one flat float32 buffer, of which every parameter's ``.grad`` is a view, so that one
    all-reduce serves all of them; gradients of lower precision are added into it after each micro-batch.

    Args:
        parameters: named parameters; those that need no gradient are left out. All on one device.
        optimizer: of the same parameters, e.g. ``Muon(model.named_parameters(), lr=4e-3)``.
        schedule: step (from 0) → multiplier of the optimiser's rate, e.g. ``partial(cosine, total=900)``.
        peers: the ranks that share each update; each calls `step` equally often.
        max_grad_norm: gradients are scaled down to this global norm; None for no clipping.
        max_bad_steps: bad updates in a row after which `step` raises.

    Attributes:
        steps: calls of `step` so far, skipped ones included: the schedule's position.
        bad_steps: updates skipped for a gradient that was not finite.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Parameter]],
        optimizer: Optimizer,
        schedule: Callable[[int], float],
        peers: Peers | None = None,
        *,
        max_grad_norm: float | None = 1.0,
        max_bad_steps: int = 3,
    ) -> None:
        trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        if not trained:
            raise ValueError("no parameter needs a gradient: there is nothing to train")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive or null, got {max_grad_norm}")
        sizes = [parameter.numel() for _, parameter in trained]
        # Two more slots travel with the gradients: the loss and the number of micro-batches.
        self._flat = torch.zeros(sum(sizes) + 2, device=trained[0][1].device)
        views = self._flat[:-2].split(sizes)
        self._slots = [_Slot(n, p, view.view_as(p)) for (n, p), view in zip(trained, views, strict=True)]
        self._gradients = {slot.name: slot.gradient for slot in self._slots}
        self.optimizer, self.schedule, self.peers = optimizer, schedule, peers or Peers()
        self.max_grad_norm, self.max_bad_steps = max_grad_norm, max_bad_steps
        self.steps = self.bad_steps = self._bad_in_a_row = 0

    def step(self, losses: Iterable[Loss]) -> StepStats:
        """One update from this rank's micro-batches.

        Args:
            losses: each computes one micro-batch's loss, already divided by the counts of the whole update over all
                ranks, so that their sum is the loss. They run and are differentiated one by one. A rank without any
                adds zeros.

        Raises:
            TrainingDiverged: ``max_bad_steps`` updates in a row were not finite.
        """
        multiplier = self.schedule(self.steps)
        self.steps += 1
        loss, norm, batches = self._accumulate(losses)
        stats = StepStats(loss, norm, self.optimizer.lr * multiplier)
        if not batches:
            return StepStats(0.0, 0.0, stats.lr, "empty")
        if not (math.isfinite(loss) and math.isfinite(norm) and norm < ABSURD_NORM):
            return self._refuse(stats)
        self._bad_in_a_row = 0
        if self.max_grad_norm is not None and norm > self.max_grad_norm:
            self._flat[:-2].mul_(self.max_grad_norm / norm)
        self.optimizer.step(self._gradients, multiplier, self.peers)
        return stats

    def _accumulate(self, losses: Iterable[Loss]) -> tuple[float, float, int]:
        """Sum gradients over micro-batches and ranks: (loss, gradient norm, number of micro-batches)."""
        self._flat.zero_()
        for slot in self._slots:
            slot.expose()
        for compute in losses:
            loss = compute()
            if loss.requires_grad:
                loss.backward()
            self._flat[-2] += loss.detach().float()
            self._flat[-1] += 1
        self.peers.all_reduce(self._flat)
        summary = torch.stack([self._flat[-2], torch.linalg.vector_norm(self._flat[:-2]), self._flat[-1]]).tolist()
        return summary[0], summary[1], int(summary[2])

    def _refuse(self, stats: StepStats) -> StepStats:
        self.bad_steps += 1
        self._bad_in_a_row += 1
        if self._bad_in_a_row >= self.max_bad_steps:
            bad = [name for name, gradient in self._gradients.items() if not bool(gradient.isfinite().all())]
            where = (
                f"{len(bad)} of {len(self._slots)} gradients are not finite, the first of {bad[0]}" if bad else "absurd"
            )
            raise TrainingDiverged(
                f"{self._bad_in_a_row} updates in a row had no usable gradient; at update {self.steps} the loss was "
                f"{stats.loss:.4g}, the gradient norm {stats.grad_norm:.4g} ({where}). Weights and optimiser are those "
                f"of the last good update. Fix: lower the learning rate (now {stats.lr:.3g}), or look at this batch"
            )
        return StepStats(stats.loss, stats.grad_norm, stats.lr, "nonfinite")

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, JSON): everything but the weights that the model itself holds."""
        counters = {"steps": self.steps, "bad_steps": self.bad_steps, "bad_in_a_row": self._bad_in_a_row}
        return self.optimizer.state_tensors(), counters

    def load_state(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue from `state`; load the model's weights first.

        Raises:
            ValueError: the state was saved with other parameters or another optimiser.
        """
        self.optimizer.load_state_tensors(tensors)
        self.steps, self.bad_steps = state["steps"], state["bad_steps"]
        self._bad_in_a_row = state["bad_in_a_row"]


class _Slot:
    """One trained parameter and its place in the flat gradient."""

    def __init__(self, name: str, parameter: Parameter, gradient: Tensor) -> None:
        self.name, self.parameter, self.gradient = name, parameter, gradient
        self.copies = parameter.dtype != torch.float32
        if self.copies:
            parameter.register_post_accumulate_grad_hook(self._collect)

    def _collect(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.gradient += parameter.grad
            parameter.grad = None

    def expose(self) -> None:
        """Have autograd add into the flat buffer, whatever was done to ``.grad`` in between."""
        self.parameter.grad = None if self.copies else self.gradient
