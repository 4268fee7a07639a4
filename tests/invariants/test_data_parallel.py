"""One process against two: the same completions, the same loss and gradient. Real stages in real processes (gloo).

Batches are odd, so that the ranks' shares differ in number and in length: a mean over ranks of their means, instead of
a sum over counts of the whole batch, then shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from components.rollout.record import read_rows
from components.runtime import StageArtifact
from flows.compose import compose
from tests.invariants.conftest import RunStage, spec

pytestmark = pytest.mark.timeout(600)
PARTS = "tests.invariants.parts"
PLAIN = {"_target_": f"{PARTS}.PlainDescent", "_partial_": True}
# Rounding moves an update by some 1e-6 of its largest element; the smallest mutation tried (a rank's own token count
# instead of the global one) by 1e-2.
TOLERANCE = 1e-4


def weights(model: Path) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in sorted(load_file(model / "model.safetensors").items())])


def assert_same_update(
    one: StageArtifact, two: StageArtifact, start: torch.Tensor, tolerance: float = TOLERANCE
) -> None:
    """The weights moved, and both moved alike to ``tolerance`` of the largest move."""
    moved = weights(one.path / "model") - start
    apart = weights(two.path / "model") - weights(one.path / "model")
    assert moved.abs().max() > 1e-3
    print(f"largest move {moved.abs().max():.2e}, largest difference {apart.abs().max() / moved.abs().max():.1e} of it")
    assert apart.abs().max() < tolerance * moved.abs().max()


def logged(artifact: StageArtifact) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (artifact.path / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("seconds_")} for row in rows]


def assert_same_figures(one: StageArtifact, two: StageArtifact) -> None:
    assert len(logged(one)) == len(logged(two)) > 0
    for mine, others in zip(logged(one), logged(two), strict=True):
        assert mine == pytest.approx(others, rel=1e-3, abs=1e-5)


def rl_settings(algorithm: str, **more: Any) -> dict[str, Any]:
    """One step of RL with signal in every group and responses of many lengths."""
    terms = {
        name: {"_target_": f"{PARTS}.{part}", "_partial_": True}
        for name, part in (("accuracy", "even"), ("digits", "digits"))
    }
    reward = {"_target_": "components.rewards.mix.Mix", "terms": terms, "weights": {"accuracy": 1.0, "digits": 1.0}}
    engine = {
        "_target_": "components.rollout.torch_engine.TorchEngine",
        "_partial_": True,
        "eos_ids": list(range(0, 576, 14)),  # one id in fourteen ends a response, so lengths differ widely
    }
    return {
        "algorithm": compose([f"algorithm={algorithm}"]).root["algorithm"],
        "reward": reward,
        "engine": engine,
        "optimizer": PLAIN,
        "lr": 1.0,
        "steps": 1,
        "quotas": {"reasoning": 3, "unsafe": 2},
        "group_size": 6,
        "max_new_tokens": 40,
        "micro_batch_tokens": 300,
        "checkpoint_every": 1,
        **more,
    }


def rollouts(artifact: StageArtifact, step: int = 1) -> list[dict[str, Any]]:
    return read_rows(artifact.path / "rollouts" / f"step-{step:06d}.parquet")


@pytest.fixture
def parents(data: StageArtifact, base: StageArtifact, tmp_path: Path) -> Mapping[str, StageArtifact]:
    """Inputs of every stage: one untrained model stands for all of them."""
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "profile.json").write_text("{}")
    return {"data": data, "model": base, "profile": StageArtifact("profile", "k", profile, "d")}


@pytest.mark.parametrize(
    ("algorithm", "beta"),
    [
        ("grpo", 0.1),  # mean of sequence means; the KL term has a reference
        ("dapo", 0.0),  # mean over all tokens; groups without signal replaced
        ("dr_grpo", 0.0),  # sum over a constant
        ("reinforce_pp", 0.1),  # advantages whitened over the whole batch
        ("gspo", 0.0),  # one ratio a sequence
    ],
)
def test_rl_samples_the_same_and_takes_the_same_step(
    run: RunStage, parents: Mapping[str, StageArtifact], algorithm: str, beta: float
) -> None:
    stage = spec("rl_1", **rl_settings(algorithm, beta=beta))
    one, two = (run(stage, parents, processes) for processes in (1, 2))
    assert one.key == two.key
    lengths = {row["length"] for row in rollouts(one)}
    assert len(rollouts(one)) >= 30 and len(lengths) > 8
    for mine, others in zip(rollouts(one), rollouts(two), strict=True):
        assert {k: v for k, v in mine.items() if k != "logp"} == {k: v for k, v in others.items() if k != "logp"}
    assert_same_update(one, two, weights(parents["model"].path / "model"))
    assert_same_figures(one, two)


def test_rl_with_fewer_groups_left_than_processes_still_ends(
    run: RunStage, parents: Mapping[str, StageArtifact]
) -> None:
    """Two prompts a step and dynamic sampling: in some steps only one group, or none, has signal."""
    stage = spec("rl_1", **rl_settings("dapo", quotas={"reasoning": 2}, group_size=2, steps=4, lr=1e-3))
    assert len(logged(run(stage, parents, 2))) == 4


@pytest.mark.parametrize("examples", [32, 17])  # the last batch of 17 has one example: nothing for the second process
def test_sft_takes_the_same_steps(run: RunStage, parents: Mapping[str, StageArtifact], examples: int) -> None:
    stage = spec("cold_start", optimizer=PLAIN, lr=0.3, max_examples=examples, batch_size=16, log_every=1)
    one, two = (run(stage, parents, processes) for processes in (1, 2))
    assert one.metrics["steps"] == two.metrics["steps"] == 2
    assert_same_update(one, two, weights(parents["model"].path / "model"))
    assert_same_figures(one, two)


@pytest.mark.parametrize("batch_size", [9, 1])  # a batch of one row: nothing for the second process
def test_pretraining_takes_the_same_steps(run: RunStage, parents: Mapping[str, StageArtifact], batch_size: int) -> None:
    stage = spec("base", optimizer=PLAIN, lr=0.3, steps=3, batch_size=batch_size, log_every=1)
    untrained = run(spec("base", optimizer=PLAIN, lr=1e-9, steps=1, batch_size=9), parents, 1)
    one, two = (run(stage, parents, processes) for processes in (1, 2))
    assert_same_update(one, two, weights(untrained.path / "model"))
    assert_same_figures(one, two)


def test_muon_shares_its_work_and_takes_the_same_steps(run: RunStage, parents: Mapping[str, StageArtifact]) -> None:
    """The optimiser as shipped; what it does to a gradient multiplies rounding, hence a wider tolerance."""
    stage = spec("cold_start", max_examples=48, batch_size=16, log_every=1)
    one, two = (run(stage, parents, processes) for processes in (1, 2))
    assert_same_update(one, two, weights(parents["model"].path / "model"), tolerance=1e-3)


def test_the_reward_model_takes_the_same_steps_and_ranks_alike(
    run: RunStage, parents: Mapping[str, StageArtifact]
) -> None:
    pairs = run(spec("preferences", pairs=17), parents, 1)
    stage = spec("reward_model", optimizer=PLAIN, lr=0.3, batch_size=16, epochs=1, log_every=1)
    one, two = (run(stage, {**parents, "preferences": pairs}, processes) for processes in (1, 2))
    assert_same_update(one, two, weights(parents["model"].path / "model"))
    assert_same_figures(one, two)
    assert one.metrics["accuracy"] == two.metrics["accuracy"]


def test_an_evaluation_is_the_same_file(run: RunStage, parents: Mapping[str, StageArtifact]) -> None:
    one, two = (run(spec("eval_base"), parents, processes) for processes in (1, 2))
    assert read_rows(one.path / "answers.parquet") == read_rows(two.path / "answers.parquet")
    assert one.digest == two.digest
