"""The controls that ship: whole on the default model, small on pipeline=smoke, alike in all but what they test."""

from __future__ import annotations

import pytest

from flows.run import prepare
from flows.stage import StageSpec


def stages(experiment: str, *overrides: str) -> dict[str, StageSpec]:
    return {spec.name: spec for spec in prepare([f"experiment={experiment}", *overrides]).specs}


@pytest.mark.parametrize("pipeline", ["r1", "smoke"])
@pytest.mark.parametrize("experiment", ["rl_vs_sft", "no_cold_start", "reward_ablation"])
def test_a_control_passes_every_check_and_evaluates_every_model_the_same_way(experiment: str, pipeline: str) -> None:
    found = stages(experiment, f"pipeline={pipeline}")
    evaluations = {name: spec for name, spec in found.items() if name.startswith("eval_")}
    assert {spec.inputs["model"] for spec in evaluations.values()} <= found.keys()
    assert len({str(sorted(spec.settings.items())) for spec in evaluations.values()}) == 1
    assert set(evaluations) <= set(found["report"].inputs.values())
    models = {name for name, spec in found.items() if spec.target.endswith((".rl", ".sft"))}
    assert models <= {spec.inputs["model"] for spec in evaluations.values()}


@pytest.mark.parametrize("pipeline", ["r1", "smoke"])
def test_more_sft_starts_where_rl_starts_and_is_told_what_rl_spent(pipeline: str) -> None:
    found = stages("rl_vs_sft", f"pipeline={pipeline}")
    assert found["sft_more"].inputs == {"model": "cold_start", "data": "curate", "budget": "rl_1"}
    assert found["rl_1"].inputs["model"] == "cold_start"
    assert found["sft_more"].settings["tokens"]["path"] == {"_input_": "budget"}
    assert found["eval_rl_1"].settings["samples"] == 16


@pytest.mark.parametrize(("pipeline", "steps"), [("r1", 120), ("smoke", 6)])
def test_rl_without_a_cold_start_is_the_same_rl(pipeline: str, steps: int) -> None:
    found = stages("no_cold_start", f"pipeline={pipeline}")
    zero, one = found["rl_zero"], found["rl_1"]
    assert zero.inputs == {"model": "base", "data": "curate"}
    assert zero.settings["steps"] == steps
    assert {k: v for k, v in zero.settings.items() if k != "checkpoint_every"} == {
        k: v for k, v in one.settings.items() if k != "checkpoint_every"
    }


@pytest.mark.parametrize("pipeline", ["r1", "smoke"])
def test_each_arm_of_the_ablation_lacks_its_terms_and_nothing_else(pipeline: str) -> None:
    found = stages("reward_ablation", f"pipeline={pipeline}", "reward.weights.language=0.3")
    full = found["rl_1"].settings
    weights = {name: found[name].settings["reward"]["weights"] for name in found if name.startswith("rl_")}
    assert weights == {
        "rl_1": {"accuracy": 1.0, "format": 0.1, "language": 0.3},
        "rl_no_format": {"accuracy": 1.0, "format": 0.0, "language": 0.3},
        "rl_no_language": {"accuracy": 1.0, "format": 0.1, "language": 0.0},
        "rl_accuracy": {"accuracy": 1.0, "format": 0.0, "language": 0.0},
    }
    for name in weights.keys() - {"rl_1"}:
        assert found[name].inputs == found["rl_1"].inputs
        differs = {k for k in full if found[name].settings.get(k) != full[k]}
        assert differs <= {"reward", "checkpoint_every"}
        assert found[name].settings["reward"]["terms"] == full["reward"]["terms"]
