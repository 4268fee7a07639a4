"""What one change rebuilds: exactly the stages it reaches and those that depend on them."""

from __future__ import annotations

import re

import pytest

from tests.e2e.conftest import Smoke
from tests.e2e.tools import STAGES, Workplace

pytestmark = pytest.mark.timeout(900)
AFTER = {  # everything that depends on a stage, the stage included
    "rl_2": {"rl_2", "eval_rl_2", "report"},
    "rl_1": {"rl_1", "eval_rl_1", "rejection", "sft_2", "eval_sft_2", "reward_model", "rl_2", "eval_rl_2", "report"},
}
AFTER["base"] = set(STAGES) - {"curate", "preferences"}


def quick(place: Workplace, *overrides: str) -> tuple[str, ...]:
    return ("run", "pipeline=smoke", "orchestrator=inline", "tracking=none", *overrides)


def test_one_reward_weight_of_the_second_rl_rebuilds_it_its_evaluation_and_the_report(
    smoke: Smoke, place: Workplace
) -> None:
    place.with_finished(smoke.place, *STAGES)
    done = place.r1flow(*quick(place, "rl_2.reward.kinds.general.weights.preference=0.9"))
    assert done.returncode == 0, done.stdout + done.stderr
    built = {name for name, state in place.states().items() if state == "done"}
    assert built == AFTER["rl_2"]
    assert {state for name, state in place.states().items() if name not in built} == {"reused"}
    assert re.search(r"rl_2 +building: reward\.kinds\.general\.weights\.preference: [\d.]+ → 0\.9\n", done.stdout)
    assert not (place.artifacts / "mlflow").exists()
    assert not (place.artifacts / "prefect").exists()


@pytest.mark.parametrize(
    ("override", "first", "why"),
    [
        ("algorithm=dr_grpo", "rl_1", "algorithm.advantage"),
        ("reward.weights.format=0.3", "rl_1", "reward.weights.format: 0.1 → 0.3"),
        ("curriculum=uniform", "rl_1", "curriculum"),
        ("rl_1.algorithm=dapo", "rl_1", "algorithm"),
        ("model.source.hidden_size=64", "base", "model.hidden_size: 32 → 64"),
        ("seed=1", "curate", "seed: 0 → 1"),
    ],
)
def test_the_plan_names_what_an_override_makes_stale_and_why(smoke: Smoke, override: str, first: str, why: str) -> None:
    done = smoke.place.r1flow("plan", "pipeline=smoke", override)
    assert done.returncode == 0, done.stderr
    lines = {line.partition(" ")[0]: line for line in done.stdout.splitlines()}
    rows = {name: line for name, line in lines.items() if name in STAGES}
    assert set(rows) == set(STAGES)
    stale = {name for name, row in rows.items() if " to build " in row}
    assert stale == AFTER.get(first, set(STAGES))
    assert why in rows[first]


def test_what_only_says_where_and_how_to_run_makes_nothing_stale(smoke: Smoke) -> None:
    done = smoke.place.r1flow(
        "plan", "pipeline=smoke", "launcher=inprocess", "tracking=none", "orchestrator=inline",
        "rl_1.checkpoint_every=7", "rl_2.micro_batch_tokens=512", "engine.max_batch=16", "cold_start.log_every=1",
    )  # fmt: skip
    assert f"{len(STAGES)} stages, 0 to build, {len(STAGES)} reused" in done.stdout
