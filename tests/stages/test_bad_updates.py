"""Losses that are not numbers and gradients beyond all measure: skipped, counted, and three in a row stop the stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from components.losses import surrogate
from components.models.checkpoint import load_latest
from components.models.learner import TrainingDiverged
from components.models.optim import AdamW
from components.runtime import Inputs, Out
from components.stages import sft as stage
from components.stages.rl import rl
from components.stages.sft import sft
from tests.stages.test_rl import Settings, metrics, weights


class Spoilt:
    """PPO's surrogate, multiplied by ``by`` in some updates. An update calls it twice: for its loss, for figures."""

    def __init__(self, at: Callable[[int], bool], by: float) -> None:
        self.at, self.by, self.calls = at, by, 0

    def __call__(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        self.calls += 1
        loss = surrogate.clip(log_ratio, advantage, eps_low=0.2, eps_high=0.2)
        return loss * self.by if self.at((self.calls + 1) // 2) else loss


def spoilt(rl_settings: Settings, at: Callable[[int], bool], by: float, **more: Any) -> dict[str, Any]:
    """One update a step, from one micro-batch: the calls of the surrogate tell the step."""
    settings = rl_settings(minibatches=1, micro_batch_tokens=10**6, **more)
    return settings | {"algorithm": replace(settings["algorithm"], surrogate=Spoilt(at, by))}


@pytest.mark.parametrize("by", [float("nan"), float("inf"), 1e30])
def test_a_bad_update_is_skipped_and_counted_and_training_goes_on(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, by: float
) -> None:
    rl(inputs, Out(tmp_path, "rl", seed=3), **spoilt(rl_settings, lambda step: step == 2, by))
    assert [row["updates_skipped"] for row in metrics(tmp_path)] == [0, 1, 0, 0]
    assert weights(tmp_path).isfinite().all()
    assert not torch.equal(weights(tmp_path), weights(inputs["model"].path))


def test_a_bad_update_is_done_again_after_a_stop_as_it_was(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    """The figures of a skipped update are no numbers; the checkpoint takes them all the same."""
    settings = spoilt(rl_settings, lambda step: step == 4, float("nan"), checkpoint_every=1)
    whole = rl(inputs, Out(tmp_path, "rl", seed=3), **settings)
    saved = load_latest(Out(tmp_path, "rl", seed=3))
    assert saved is not None
    assert (saved.step, saved.state["learner"]["bad_steps"]) == (4, 1)
    again = rl(inputs, Out(tmp_path, "rl", seed=3), **rl_settings(checkpoint_every=1))
    assert again["updates_skipped"] == whole["updates_skipped"] == 1


def test_three_bad_updates_in_a_row_stop_with_the_checkpoint_kept(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    settings = spoilt(rl_settings, lambda step: step > 2, float("nan"), steps=9, checkpoint_every=1)
    with pytest.raises(TrainingDiverged, match=r"3 updates in a row(.|\n)*Fix: lower the learning rate"):
        rl(inputs, Out(tmp_path, "rl", seed=3), **settings)
    assert [row["updates_skipped"] for row in metrics(tmp_path)] == [0, 0, 1, 1]
    saved = load_latest(Out(tmp_path, "rl", seed=3))
    assert saved is not None
    assert saved.step == 4
    assert all(bool(weight.isfinite().all()) for weight in saved.tensors["model"].values())


def test_supervised_stages_skip_and_stop_the_same_way(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = stage.example_loss, []

    def bad_from_the_third(*given: Any) -> Tensor:
        calls.append(1)
        loss = plain(*given)
        return loss * float("nan") if len(calls) in (2, 6, 7, 8) else loss

    monkeypatch.setattr(stage, "example_loss", bad_from_the_third)
    settings = {"files": {"data": ["cold_start.jsonl"]}, "optimizer": AdamW, "batch_size": 8, "max_examples": 96}
    with pytest.raises(TrainingDiverged, match="at update 8 the loss was nan"):
        sft(inputs, Out(tmp_path, "sft", seed=3), **settings, epochs=1, log_every=1, checkpoint_every=1)
    saved = load_latest(Out(tmp_path, "sft", seed=3))
    assert saved is not None
    assert saved.step == 7
    assert saved.state["learner"] == {"steps": 7, "bad_steps": 3, "bad_in_a_row": 2}
