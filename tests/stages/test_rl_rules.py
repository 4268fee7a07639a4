"""What an algorithm asks of the RL stage beside its loss: corrections of the engine, entropy, the reference."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import read_json
from components.losses import mismatch
from components.losses.entropy import Entropy
from components.losses.kl import Penalty
from components.losses.overlong import Overlong
from components.losses.policy import Algorithm
from components.rewards.mix import ByKind, Mix
from components.rollout.record import read_rows
from components.rollout.torch_engine import TorchEngine
from components.runtime import Inputs, Interrupted
from tests.stages.test_rl import Settings, metrics, run, sha, weights

SHIFT = 0.9


class Skewed(TorchEngine):
    """An engine that reports log-probabilities lower than the trainer's by a constant."""

    def generate(self, prompts: Any, sampling: Any, environment: Any = None) -> Any:
        drawn = super().generate(prompts, sampling, environment)
        shifted = lambda c: tuple(x - SHIFT * m for x, m in zip(c.logp, c.action_mask, strict=True))  # noqa: E731
        return [[replace(c, logp=shifted(c)) for c in group] for group in drawn]


@pytest.mark.parametrize("correction", [None, mismatch.tis, partial(mismatch.mis, bound=2.0)])
def test_the_gap_between_engine_and_trainer_is_always_logged(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm, correction: Any
) -> None:
    algorithm = replace(grpo, mismatch=correction)
    run(inputs, tmp_path / "honest", rl_settings(algorithm=algorithm, steps=1))
    run(inputs, tmp_path / "skewed", rl_settings(algorithm=algorithm, steps=1, engine=Skewed))
    honest, skewed = metrics(tmp_path / "honest")[0], metrics(tmp_path / "skewed")[0]
    assert 0 <= honest["gap"] <= honest["gap_max"] < 1e-4 and abs(honest["gap_kl"]) < 1e-6
    assert skewed["gap"] == pytest.approx(SHIFT, abs=1e-4) and skewed["gap_max"] == pytest.approx(SHIFT, abs=1e-4)
    assert skewed["gap_kl"] == pytest.approx(math.exp(SHIFT) - 1 - SHIFT, abs=1e-3)


def test_a_correction_takes_the_trainers_own_log_probabilities_for_the_ratio(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm
) -> None:
    one = {"steps": 1, "minibatches": 1}
    run(inputs, tmp_path / "plain", rl_settings(**one))
    run(inputs, tmp_path / "uncorrected", rl_settings(engine=Skewed, **one))
    run(inputs, tmp_path / "tis", rl_settings(engine=Skewed, algorithm=replace(grpo, mismatch=mismatch.tis), **one))
    dropped = replace(grpo, mismatch=partial(mismatch.mis, bound=1.5))
    run(inputs, tmp_path / "mis", rl_settings(engine=Skewed, algorithm=dropped, **one))
    figures = {folder.name: metrics(folder)[0] for folder in tmp_path.iterdir()}
    assert figures["uncorrected"]["ratio_max"] == pytest.approx(math.exp(SHIFT), rel=1e-3)
    assert figures["tis"]["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert figures["tis"]["policy_loss"] == pytest.approx(2 * figures["plain"]["policy_loss"], abs=1e-5)  # e^.9 > 2
    assert figures["tis"]["grad_norm"] == pytest.approx(2 * figures["plain"]["grad_norm"], rel=1e-3)
    assert figures["mis"]["grad_norm"] == 0


def test_a_filtered_response_counts_in_its_group_and_then_leaves_the_loss(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm
) -> None:
    drop = Overlong(buffer_share=None, drop=True)

    class Cuts(TorchEngine):
        """Every other response comes back as cut off."""

        def generate(self, prompts: Any, sampling: Any, environment: Any = None) -> Any:
            drawn = super().generate(prompts, sampling, environment)
            ends = ("length", "stop")
            return [[replace(c, finish=ends[i % 2]) for i, c in enumerate(group)] for group in drawn]

    def odd_ones(task: Any, rollout: Any) -> float:
        return float(rollout.finish == "stop")

    reward = Mix(terms={"odd": odd_ones}, weights={"odd": 1.0})
    settings = {"steps": 1, "engine": Cuts, "reward": reward, "minibatches": 1}
    run(inputs, tmp_path, rl_settings(algorithm=replace(grpo, overlong=drop), **settings))
    row = metrics(tmp_path)[0]
    assert row["grad_norm"] > 0  # filtered before the statistics, every group would be constant
    # A = (1 - 1/2) / (std + eps) for each token that is left, on the policy that sampled
    assert row["policy_loss"] == pytest.approx(-0.5 / (math.sqrt(1 / 3) + 1e-4), rel=1e-4)


def test_what_the_stage_leaves_open_goes_with_the_algorithm(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm
) -> None:
    algorithm = replace(grpo, suggests={"group_size": 3, "lr": 1e-12})
    run(inputs, tmp_path, rl_settings(algorithm=algorithm, group_size=None, lr=None, steps=1))
    assert len(read_rows(tmp_path / "rollouts" / "step-000001.parquet")) == 6 * 3
    assert (weights(tmp_path) - weights(inputs["model"].path)).abs().max() < 1e-9


def test_the_adaptive_entropy_coefficient_moves_and_survives_a_stop(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm
) -> None:
    algorithm = replace(grpo, entropy=Entropy(coef=0.01, target=20.0, step=0.005))  # nobody is that uncertain: it rises
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(inputs, whole, rl_settings(algorithm=algorithm))
    coefficients = [row["entropy_coef"] for row in metrics(whole)]
    assert coefficients == pytest.approx([0.015, 0.02, 0.025, 0.03])
    asked = iter([False, True, True])
    with pytest.raises(Interrupted):
        run(inputs, parts, rl_settings(algorithm=algorithm), stop=lambda: next(asked))
    run(inputs, parts, rl_settings(algorithm=algorithm))
    assert sha(whole) == sha(parts) and metrics(whole) == metrics(parts)


def test_a_refreshed_reference_is_the_policy_again_and_survives_a_stop(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm
) -> None:
    algorithm = replace(grpo, kl=Penalty(beta=0.1), ref_refresh_every=2)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    same = {"algorithm": algorithm, "minibatches": 1, "lr": 5e-3, "warmup": 0.0}
    run(inputs, whole, rl_settings(**same))
    away = [row["kl_ref"] for row in metrics(whole)]
    assert away[0] == pytest.approx(0, abs=1e-6) and away[2] == pytest.approx(0, abs=1e-6)  # after steps 0 and 2
    assert away[1] > 1e-6 and away[3] > 1e-6
    asked = iter([False, False, True, True])
    with pytest.raises(Interrupted):
        run(inputs, parts, rl_settings(**same), stop=lambda: next(asked))
    run(inputs, parts, rl_settings(**same))
    assert sha(whole) == sha(parts) and metrics(whole) == metrics(parts)


def test_what_the_reward_found_out_about_the_machine_is_kept(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    class Finds:
        def facts(self) -> dict[str, str]:
            return {"sandbox": "landlock"}

        def __call__(self, task: Any, rollout: Any) -> float:
            return 0.5

    reward = ByKind(
        kinds=dict.fromkeys(("reasoning", "general"), Mix(terms={"x": Finds()}, weights={"x": 1.0}, isolate=False))
    )
    run(inputs, tmp_path, rl_settings(reward=reward, steps=1))
    assert read_json(tmp_path / "logs" / "facts.json") == {"sandbox": "landlock"}
