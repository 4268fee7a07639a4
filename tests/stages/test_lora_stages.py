"""Adapters through whole stages: engine and learner agree after every sync, a stop costs nothing, no stage is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from components.losses import kl
from components.losses.policy import Algorithm
from components.models.checkpoint import load_latest
from components.models.lora import Lora
from components.models.optim import AdamW
from components.runtime import Inputs, Interrupted, Out
from components.stages.dpo import dpo
from components.stages.preferences import preferences
from components.stages.reward_model import reward_model
from components.stages.rl import rl
from components.stages.sft import sft
from tests.stages.conftest import artifact
from tests.stages.test_rl import metrics, run, sha

pytest.importorskip("peft")
Settings = Callable[..., dict[str, Any]]
LORA = Lora(r=4, alpha=8)


@pytest.fixture
def pulled(grpo: Algorithm) -> Algorithm:
    """GRPO with a KL term against where it started."""
    return replace(grpo, kl=kl.Penalty(estimator="k3", place="loss", beta=None))


def model_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_engine_and_learner_agree_after_each_sync(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, pulled: Algorithm
) -> None:
    run(inputs, tmp_path, rl_settings(algorithm=pulled, lora=LORA, beta=0.05, lr=2e-2))
    rows = metrics(tmp_path)
    assert len(rows) == 4
    assert all(row["gap_max"] < 1e-4 for row in rows)
    assert rows[0]["kl_ref"] < rows[-1]["kl_ref"]  # the policy has moved, and the engine with it
    assert rows[-1]["kl_ref"] > 1e-3


@pytest.mark.parametrize("between", ["merge", "stack"])
def test_a_stopped_run_with_adapters_continues_bit_for_bit(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, pulled: Algorithm, between: Any
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    again = replace(pulled, ref_refresh_every=2)
    settings = partial(rl_settings, algorithm=again, lora=replace(LORA, between=between), beta=0.05, checkpoint_every=1)
    run(inputs, whole, settings())
    asked = iter([False, False, True, True])
    with pytest.raises(Interrupted):
        run(inputs, parts, settings(), stop=lambda: next(asked))
    saved = load_latest(Out(parts, "rl", seed=3))
    assert saved is not None
    assert all(".lora_" in name for part in ("model", "reference") for name in saved.tensors[part])
    run(inputs, parts, settings())
    assert sha(whole) == sha(parts)
    assert metrics(whole) == metrics(parts)


def test_the_first_step_is_that_of_the_model_it_starts_from(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, pulled: Algorithm
) -> None:
    for name, lora in (("full", None), ("lora", LORA)):
        run(inputs, tmp_path / name, rl_settings(algorithm=pulled, lora=lora, beta=0.05, steps=1))
    full, adapted = metrics(tmp_path / "full")[0], metrics(tmp_path / "lora")[0]
    assert full["reward"] == adapted["reward"]  # new adapters change nothing


def test_sft_then_rl_with_adapters_keep_the_sft(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    """What RL with a learning rate of next to nothing leaves is the SFT's model, whichever way they are joined."""
    for between in ("merge", "stack"):
        lora = replace(LORA, between=between)
        folder = tmp_path / between
        for part in ("sft", "rl"):
            (folder / part).mkdir(parents=True)
        settings = {"files": {"data": ["cold_start.jsonl"]}, "optimizer": AdamW, "lr": 1e-2, "epochs": 1}
        sft(inputs, Out(folder / "sft", "sft", seed=0), lora=lora, max_examples=64, **settings)
        after = {**inputs, "model": artifact(folder / "sft", "sft")}
        rl(after, Out(folder / "rl", "rl", seed=0), **rl_settings(lora=lora, lr=1e-9, steps=1))
        learned, kept = model_weights(folder / "sft"), model_weights(folder / "rl")
        start = model_weights(inputs["model"].path)
        assert max(float((learned[name] - start[name]).abs().max()) for name in learned) > 1e-2
        for name in learned:
            torch.testing.assert_close(kept[name], learned[name], rtol=0, atol=1e-5)
        adapters = sorted(path.name for path in (folder / "rl" / "adapters").iterdir())
        assert adapters == (["000"] if between == "merge" else ["000", "001"])


def test_micro_batches_of_sft_change_rounding_only(inputs: Inputs, tmp_path: Path) -> None:
    found = []
    for tokens in (16384, 200):
        folder = tmp_path / str(tokens)
        folder.mkdir()
        settings = {"files": {"data": ["cold_start.jsonl"]}, "optimizer": AdamW, "lr": 1e-3, "epochs": 1}
        out = Out(folder, "sft", seed=0)
        sft(inputs, out, max_examples=32, batch_size=16, micro_batch_tokens=tokens, **settings)
        found.append(model_weights(folder))
    for name, weight in found[0].items():
        torch.testing.assert_close(found[1][name], weight, rtol=0, atol=1e-4)


def test_a_reward_model_and_dpo_take_adapters(inputs: Inputs, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    preferences({"data": inputs["data"]}, Out(pairs, "preferences", seed=0), pairs=32, test_pairs_per_prompt=1)
    given = {**inputs, "preferences": artifact(pairs, "preferences")}
    start = model_weights(inputs["model"].path)
    for name, stage in (("reward_model", reward_model), ("dpo", dpo)):
        folder = tmp_path / name
        folder.mkdir()
        stage(given, Out(folder, name, seed=0), optimizer=AdamW, epochs=1, batch_size=8, lr=1e-2, lora=LORA)
        learned = model_weights(folder)
        assert learned.keys() == start.keys()
        moved = {key for key in start if not torch.equal(learned[key], start[key])}
        assert moved
        assert all("proj" in key for key in moved)  # embeddings, norms and head are frozen
    assert json.loads((tmp_path / "dpo" / "adapters" / "000" / "adapter_config.json").read_text())["r"] == 4
