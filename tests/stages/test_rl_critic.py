"""RL stages with a critic: they learn, warm up, stop and continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from safetensors.torch import load_file
from torch import Tensor

from components.losses.policy import Algorithm
from components.models.lora import Lora
from components.rollout.record import read_rows
from components.runtime import Inputs, Interrupted, Out
from components.stages.rl import rl
from components.stages.rl_critic import CriticSetup
from components.stages.shared import Policy

Settings = Callable[..., dict[str, Any]]
CONF = Path(__file__).parents[2] / "conf" / "algorithm"
ACTOR_CRITIC = ("ppo", "vapo")


def preset(name: str, *, warmup_steps: int = 0, **changes: Any) -> Algorithm:
    algorithm = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _convert_="all")
    return replace(algorithm, critic=replace(algorithm.critic, warmup_steps=warmup_steps), **changes)


def run(
    inputs: Inputs, folder: Path, settings: dict[str, Any], stop: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    return rl(inputs, Out(folder, "rl", seed=3, stop_requested=stop), **settings)


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("seconds_")} for row in rows]


def checkpoint(folder: Path, step: int, part: str) -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / f"{part}.safetensors")


@pytest.mark.parametrize("name", ACTOR_CRITIC)
def test_ppo_and_vapo_raise_the_reward(inputs: Inputs, tmp_path: Path, rl_settings: Settings, name: str) -> None:
    settings = rl_settings(algorithm=preset(name, warmup_steps=2), steps=10, lr=5e-3, critic=CriticSetup(lr=5e-3))
    run(inputs, tmp_path, settings)
    rows = metrics(tmp_path)
    reward = [row["reward"] for row in rows]
    assert len(rows) == 2 + 10
    assert sum(reward[-3:]) > sum(reward[:3]) + 0.3
    assert {"value_loss", "explained_variance", "value_clip_fraction", "critic_grad_norm"} <= rows[-1].keys()
    assert all(row["value_loss"] < 10 for row in rows)


def test_every_step_of_the_warm_up_samples_anew(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = []
    sample = Policy.sample

    def recorded(policy: Policy, *args: Any) -> Any:
        addresses.append(args[4])
        return sample(policy, *args)

    monkeypatch.setattr(Policy, "sample", recorded)
    run(inputs, tmp_path, rl_settings(algorithm=preset("vapo", warmup_steps=2), steps=1))
    assert len(set(addresses)) == 3


def test_the_warm_up_leaves_the_policy_untouched(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    settings = rl_settings(algorithm=preset("vapo", warmup_steps=2), steps=1)
    done = run(inputs, tmp_path, settings)
    start = load_file(inputs["model"].path / "model" / "model.safetensors")
    warm, after = (checkpoint(tmp_path, step, "model") for step in (2, 3))
    assert all(torch.equal(warm[name], weight) for name, weight in start.items())
    assert not all(torch.equal(after[name], weight) for name, weight in start.items())
    assert not checkpoint(tmp_path, 2, "learner")  # the optimiser has not made a step either
    assert checkpoint(tmp_path, 2, "critic")["head.bias"].abs() > 0
    rollouts = [row for file in sorted((tmp_path / "rollouts").iterdir()) for row in read_rows(file)]
    assert {(row["step"], row["policy_version"]) for row in rollouts} == {(1, 0), (2, 0), (3, 0)}
    assert "loss" not in metrics(tmp_path)[1]
    assert "loss" in metrics(tmp_path)[2]
    assert done["steps"] == 1


@pytest.mark.parametrize(("name", "stop_after"), [("vapo", 1), ("vapo", 3), ("ppo", 1)])
def test_a_stopped_run_continues_bit_for_bit_critic_included(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, name: str, stop_after: int
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    warmup_steps, last = (2, 4) if name == "vapo" else (0, 2)
    settings = partial(rl_settings, algorithm=preset(name, warmup_steps=warmup_steps), steps=2, checkpoint_every=3)
    run(inputs, whole, settings())
    asked = iter([False] * (stop_after - 1) + [True] * 2)
    with pytest.raises(Interrupted):
        run(inputs, parts, settings(), stop=lambda: next(asked))
    run(inputs, parts, settings())
    assert metrics(whole) == metrics(parts)
    for part in ("model", "learner", "critic", "critic_learner"):
        one, other = checkpoint(whole, last, part), checkpoint(parts, last, part)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), part


def test_micro_batch_size_changes_rounding_only_with_a_critic(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    folders = tmp_path / "one", tmp_path / "many"
    for folder, micro in zip(folders, (100_000, 1), strict=True):
        algorithm = preset("ppo", warmup_steps=1)
        run(inputs, folder, rl_settings(steps=1, algorithm=algorithm, micro_batch_tokens=micro))
    for part in ("model", "critic"):
        one, many = (checkpoint(folder, 2, part) for folder in folders)
        assert all((one[name] - many[name]).abs().max() < 1e-5 for name in one)  # a step moves weights by 1e-3


def test_a_lora_critic_runs_and_resumes(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    settings = partial(rl_settings, algorithm=preset("ppo"), steps=2, critic=CriticSetup(lora=Lora(r=2, alpha=4)))
    asked = iter([True, True])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with pytest.raises(Interrupted):
        run(inputs, parts, settings(), stop=lambda: next(asked))
    for folder in (whole, parts):
        run(inputs, folder, settings())
    one, other = checkpoint(whole, 2, "critic"), checkpoint(parts, 2, "critic")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(".lora_" in name or name.startswith("head.") for name in one)
