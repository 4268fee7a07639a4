"""Settings of the reward, from the command line to the stages that use them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from flows.build import ALLOWED, build, stage_specs
from flows.compose import compose
from flows.errors import BadInput
from flows.preflight import preflight
from flows.stage import StageSpec
from flows.sweep import expand


def stages(*overrides: str) -> dict[str, StageSpec]:
    return {spec.name: spec for spec in preflight(stage_specs(compose(overrides)))}


def test_a_sweep_over_a_weight_gives_each_run_its_own_in_every_stage_that_uses_it() -> None:
    runs = expand(["reward.weights.format=0.1,0.2", "seed=3"])
    assert runs == [["reward.weights.format=0.1", "seed=3"], ["reward.weights.format=0.2", "seed=3"]]
    for overrides, weight in zip(runs, (0.1, 0.2), strict=True):
        found = stages(*overrides)
        first, second = found["rl_1"].settings["reward"], found["rl_2"].settings["reward"]["kinds"]["reasoning"]
        assert (first["weights"]["format"], second["weights"]["format"]) == (weight, weight)
        assert build(first, allow=ALLOWED).weights == {"accuracy": 1.0, "format": weight, "language": 0.2}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("reward.weights.format=-0.1", "reward.weights.format: must not be negative (got -0.1)"),
        ("reward.weights.format=nan", "reward.weights.format: is not a finite number"),
        ("+reward.weights.fromat=0.1", "reward.weights.fromat: there is no term of that name (got 0.1). Fix: did you"),
        ("reward.weights={accuracy: 0, format: 0, language: 0}", "reward.weights: sum to 0, nothing would be rewarded"),
        ("reward.weights=[1, 0.1, 0.2]", "Cannot merge DictConfig with ListConfig"),
        ("~reward.weights.format", "reward.weights: must have the same names as terms; format has none"),
        ("reward.weights.format=much", "reward.weights.format: expects a number (got 'much')"),
        ("+reward.gates={accuracy: {form: 1}}", "reward.gates: no such term 'form'"),
        ("+reward.active={format: [0.5]}", "reward.active.format: expects two shares of the steps"),
        ("+reward.ramps={format: [0.5, 1]}", "reward.ramps.format.0: expects a list (got 0.5)"),
        ("+reward.normalise={format: step}", "reward.normalise.format: expects batch or group"),
        ("+reward.abstained=drop", "reward.abstained: expects one of 'mask', 'skip' (got 'drop')"),
        ("+reward.seconds=0", "reward.seconds: must be positive"),
        ("+reward.workers=0", "reward.workers: must be at least 1"),
        ("+reward.wieghts=1", "reward.wieghts: no such setting"),
    ],
)
def test_a_reward_that_cannot_be_right_is_told_in_one_line(override: str, told: str) -> None:
    with pytest.raises(BadInput) as error:
        stages("pipeline=r1_zero", override)
    [line] = str(error.value).splitlines()
    assert told in line
    assert "Fix: " in line


def test_a_penalty_may_weigh_less_than_nothing() -> None:
    settings = stages("pipeline=r1_zero", "reward.weights.format=-0.1", "+reward.penalties=[format]")["rl"].settings
    assert settings["reward"]["weights"]["format"] == -0.1


def test_a_reward_is_checked_without_anything_heavy() -> None:
    script = (
        "import sys; from flows.build import stage_specs; from flows.compose import compose; "
        "from flows.preflight import preflight; "
        "preflight(stage_specs(compose(['+reward.gates={accuracy: {format: 1}}', "
        "'+rl_2.reward.kinds.general.ramps={rule: [[0, 1], [1, 0.5]]}']))); "
        "print(sorted({'torch', 'transformers', 'components.rewards.mix'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("overrides", "reached"),
    [
        (("reward.workers=8",), set()),
        (("+reward.workers=8",), set()),
        (("+reward.seconds=30",), {"rl_1", "rl_2"}),
        (("reward_model.part=answer",), {"reward_model"}),
    ],
)
def test_only_what_can_change_a_result_is_part_of_a_stages_key(overrides: tuple[str, ...], reached: set[str]) -> None:
    from flows.stage import key_settings

    plain, changed = stages(), stages(*overrides)
    assert {n for n in plain if key_settings(plain[n].settings) != key_settings(changed[n].settings)} == reached


def test_the_judge_option_says_what_it_lacks_and_builds_once_it_has_it() -> None:
    with pytest.raises(BadInput, match=r"reward.terms.judge.model.url: must be given"):
        stages("pipeline=r1_zero", "reward=judge")
    found: Any = stages("pipeline=r1_zero", "reward=judge", *JUDGE)["rl"].settings["reward"]
    assert build(found, allow=ALLOWED).terms["judge"].model.url == "http://127.0.0.1:8000/v1"
    with pytest.raises(BadInput, match=r"reward.terms.judge.model.url: is no address"):
        stages("pipeline=r1_zero", "reward=judge", JUDGE[1], "reward.terms.judge.model.url=localhost")


JUDGE = ("reward.terms.judge.model.url=http://127.0.0.1:8000/v1", "reward.terms.judge.model.model=judge")
