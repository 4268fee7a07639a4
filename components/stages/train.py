"""The loop that pretraining, SFT and the reward model share: step, log, checkpoint, resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from torch import Tensor, nn

from components.artifacts import plain_json
from components.models.checkpoint import load_latest, save_checkpoint
from components.models.learner import Learner, Loss
from components.models.lora import load_trained_state, trained_state
from components.runtime import Out

_ASK_S = 0.25  # between questions whether to stop, which all ranks have to answer together; slow steps ask each time


def train(
    out: Out,
    module: nn.Module,
    learner: Learner,
    steps: int,
    loss_of_step: Callable[[int], Tensor | Sequence[Loss]],
    *,
    log_every: int,
    checkpoint_every: int,
) -> float:
    """Take ``steps`` optimiser steps, from the last checkpoint on; returns the loss of the last step over all ranks.

    Args:
        loss_of_step: this rank's share of the loss of a step, divided by counts of the whole batch; or functions that
            compute its parts, one after the other.

    Raises:
        Interrupted: a stop was asked for; everything up to the last finished step is saved.
    """
    start, loss = 0, 0.0
    if (saved := load_latest(out)) is not None:
        load_trained_state(module, saved.tensors["model"])
        learner.load_state(saved.tensors["learner"], saved.state["learner"])
        start, loss = saved.step, saved.state["loss"]
    stop = _Question(out)
    for step in range(start, steps):
        stats = learner.step(_parts(loss_of_step, step))
        last = step + 1 == steps
        if (step + 1) % log_every == 0 or last:
            loss = stats.loss
            out.log(step + 1, {"loss": loss, "lr": stats.lr, "grad_norm": stats.grad_norm})
            out.progress(step + 1, steps, loss=loss)
        stopping = stop.asked()
        if not last and (stopping or (step + 1) % checkpoint_every == 0):
            tensors, state = learner.state()
            rest = {"learner": state, "loss": plain_json(loss)}
            save_checkpoint(out, step + 1, {"model": trained_state(module), "learner": tensors}, rest)
            if stopping:
                out.raise_if_stopping()
    return loss


def _parts(loss_of_step: Callable[[int], Tensor | Sequence[Loss]], step: int) -> Sequence[Loss]:
    found = loss_of_step(step)
    return [lambda: found] if isinstance(found, Tensor) else found


class _Question:
    """Whether to stop, put to all ranks together: every few steps, after each where one takes `_ASK_S` or longer."""

    def __init__(self, out: Out) -> None:
        self.out, self.every, self.steps, self.since = out, 1, 0, monotonic()

    def asked(self) -> bool:
        """Once per step on every rank; the same answer on each."""
        self.steps += 1
        if self.steps < self.every:
            return False
        answers = self.out.peers.gather((self.out.stop_requested(), monotonic() - self.since))
        step_s = max(seconds for _, seconds in answers) / self.steps
        self.every, self.steps, self.since = max(1, int(_ASK_S / max(step_s, 1e-3))), 0, monotonic()
        return any(stop for stop, _ in answers)
