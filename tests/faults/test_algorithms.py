"""N steps are N₁ steps, a kill and the rest, to the bit: weights, optimisers, critic, samples, rewards, metrics."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import Claim
from components.runtime import Out
from flows.build import stage_specs
from flows.compose import compose
from tests.faults.plant import SMALL, Plant, Stage, in_child

pytestmark = pytest.mark.timeout(600)
STEPS = 6
# A critic has its warm-up, a reference is replaced, a coefficient and a mix of rewards move: all of it in so few steps.
MORE = {
    "ppo": ("algorithm.critic.warmup_steps=2",),
    "grpo_r1": ("algorithm.ref_refresh_every=2",),
    "dapo": (
        "algorithm.entropy={_target_: components.losses.entropy.Entropy, coef: 0.01, target: 3.0, step: 0.003}",
        "+rl_1.reward.active={digits: [0.0, 0.5]}",
    ),
}
# Both terms have signal on a model that has learned nothing.
REWARD = (
    "rl_1.reward={_target_: components.rewards.mix.Mix, isolate: false, weights: {accuracy: 1.0, digits: 1.0}, terms: {"
    "accuracy: {_target_: tests.invariants.parts.parity, _partial_: true}, "
    "digits: {_target_: tests.invariants.parts.digits, _partial_: true}}}"
)
KILLS = (
    ("at once", 1, "before the metrics"),
    ("after a step whose checkpoint is not yet due", 3, "after the metrics"),
    ("in the step after a checkpoint", 5, "before the metrics"),
    ("before the last step is published", 0, "publishing"),
)


def rl_with(plant: Plant, algorithm: str) -> Stage:
    """The first RL stage with another algorithm and a reward that has signal on an untrained model."""
    changed = (f"algorithm={algorithm}", f"rl_1.steps={STEPS}", "rl_1.lr=3e-3", REWARD)
    specs = {spec.name: spec for spec in stage_specs(compose([*SMALL, *changed, *MORE.get(algorithm, ())]))}
    spec = specs["rl_1"]
    return Stage(spec, {given: plant[source].artifact for given, source in spec.inputs.items()})


def build_and_die(stage: Stage, root: Path, step: int, moment: str) -> Any:
    """Build in this process and kill it at a moment of a step."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    log = Out.log

    def log_and_die(out: Out, number: int, metrics: Any) -> None:
        if number == step and moment == "before the metrics":
            die()
        log(out, number, metrics)
        if number == step and moment == "after the metrics":
            die()

    Out.log = log_and_die
    if moment == "publishing":
        Claim.commit = lambda claim, **what: die()
    return stage.build(root)


@pytest.mark.parametrize(
    "algorithm",
    ["grpo", *(pytest.param(name, marks=pytest.mark.faults) for name in ("dapo", "gspo", "ppo", "grpo_r1", "vapo"))],
)
def test_a_killed_run_goes_on_to_the_bit(plant: Plant, tmp_path: Path, tally: Counter[str], algorithm: str) -> None:
    stage = rl_with(plant, algorithm)
    stage.reference = stage.again(tmp_path / "whole")
    assert len({row["reward"] for row in stage.reference.metrics}) > 1
    moved = [row["grad_norm"] for row in stage.reference.metrics if "grad_norm" in row]
    assert len(moved) >= STEPS - 2 and min(moved) > 0
    for number, (why, step, moment) in enumerate(KILLS):
        root = tmp_path / str(number)
        ended = in_child(lambda root=root, s=step, m=moment: build_and_die(stage, root, s, m), root / "note.json")
        assert ended.killed, why
        found = stage.recovers(root)
        assert found.state == stage.reference.state, why  # optimisers, critic, curriculum, coefficients
        tally[f"kill of RL with {algorithm}"] += 1
