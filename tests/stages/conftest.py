"""Real, very small artifacts that stage tests start from."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from components.curriculum.uniform import uniform
from components.data.builtin import Builtin
from components.environments.calculator import Calculator
from components.losses import advantage, aggregate, ratio, surrogate
from components.losses.policy import Algorithm
from components.models.optim import AdamW, Muon
from components.models.tiny import Tiny
from components.rewards.accuracy import Accuracy
from components.rewards.format import think_then_answer
from components.rewards.language import consistency
from components.rewards.mix import Mix
from components.rollout.torch_engine import TorchEngine
from components.runtime import Inputs, Out, StageArtifact
from components.stages.base_model import base_model
from components.stages.curate import curate


def artifact(path: Path, stage: str = "stage") -> StageArtifact:
    return StageArtifact(stage=stage, key="k", path=path, digest="d")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> StageArtifact:
    path = tmp_path_factory.mktemp("curate")
    curate({}, Out(path, "curate", seed=0), source=Builtin(scale=0.02))
    return artifact(path, "curate")


@pytest.fixture(scope="session")
def base(data: StageArtifact, tmp_path_factory: pytest.TempPathFactory) -> StageArtifact:
    path = tmp_path_factory.mktemp("base")
    source = Tiny(hidden_size=32, layers=1, heads=2, kv_heads=1, mlp=64)
    base_model({"data": data}, Out(path, "base", seed=0), model=source, optimizer=Muon, steps=30, batch_size=8)
    return artifact(path, "base")


@pytest.fixture
def inputs(data: StageArtifact, base: StageArtifact) -> Inputs:
    return {"data": data, "model": base}


@pytest.fixture
def grpo() -> Algorithm:
    return Algorithm(
        advantage=advantage.group_norm,
        ratio=ratio.token,
        surrogate=partial(surrogate.clip, eps_low=0.2, eps_high=0.2),
        aggregate=aggregate.token_mean,
    )


@pytest.fixture
def rl_settings(grpo: Algorithm) -> Callable[..., dict[str, Any]]:
    """Settings of a very small RL stage whose reward has signal on an untrained model: how often it says a digit."""

    def digits(task: object, rollout: Any) -> float:
        return sum(char.isdigit() for char in rollout.response) / 10

    def settings(**changes: Any) -> dict[str, Any]:
        terms = {"accuracy": Accuracy(), "digits": digits, "format": think_then_answer, "language": consistency}
        return {
            "algorithm": grpo,
            "reward": Mix(terms=terms, weights={"accuracy": 1.0, "digits": 1.0, "format": 0.1, "language": 0.2}),
            "curriculum": uniform(),
            "engine": TorchEngine,
            "environment": Calculator(),
            "optimizer": AdamW,
            "steps": 4,
            "quotas": {"reasoning": 4, "unsafe": 2},
            "group_size": 4,
            "lr": 1e-3,
            "max_new_tokens": 12,
            "checkpoint_every": 1,
            **changes,
        }

    return settings


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
