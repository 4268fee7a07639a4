"""Workers lost while they work together: the stage is tried again in the same run and ends as if nothing had been."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from flows.launch.causes import oom_kills
from flows.pipeline import Driver, RunResult
from flows.stage import StageSpec, run_stage
from tests.faults.plant import Plant, metrics_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
TWO = {"_target_": "flows.launch.torchrun.Torchrun", "processes": 2, "device": "cpu"}


class Run:
    """Runs one stage of the plant in two processes, as the driver does, and may kill a worker at a step."""

    def __init__(self, plant: Plant, name: str, root: Path, victim: int | None = None, step: int = 0) -> None:
        self.plant, self.name, self.root, self.victim, self.step = plant, name, root, victim, step
        self.events: list[dict[str, Any]] = []
        self.killed = False

    def hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] == "metrics" and event["step"] == self.step and self.victim is not None and not self.killed:
            [worker] = [p for p in multiprocessing.active_children() if p.name == f"{self.name}-{self.victim}"]
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            self.killed = True

    def __call__(self) -> RunResult:
        stage = self.plant[self.name]
        store = ArtifactStore(self.root)

        def execute(spec: StageSpec, parents: Any, launch: Any, say: Any) -> Any:
            return run_stage(spec, stage.parents, store, launch, say)

        spec = dataclasses.replace(stage.spec, inputs={}, launcher=TWO, retries=1)
        spec_of_parents = dataclasses.replace(spec, inputs=stage.spec.inputs)
        return Driver(
            [spec],
            lambda _, parents, launch, say: execute(spec_of_parents, parents, launch, say),
            emit=self.hear,
            retry_wait_s=0.01,
            allow=("components", "tests"),
        ).run()


@pytest.mark.skipif(oom_kills() is None, reason="this kernel does not say whether memory ran out")
@pytest.mark.parametrize("name", ["cold_start", "rl_1", "rl_2"])
def test_a_lost_worker_is_made_good_in_the_same_run(
    plant: Plant, tmp_path: Path, tally: Counter[str], name: str
) -> None:
    whole = Run(plant, name, tmp_path / "whole")().stages[name]
    assert whole.artifact is not None, whole.why
    draw = random.Random(name)
    for victim in (0, 1):
        run = Run(plant, name, tmp_path / str(victim), victim, step=draw.randint(1, 3))
        again = run().stages[name]
        assert again.artifact is not None, again.why
        assert run.killed
        [warning] = [event["text"] for event in run.events if event.get("level") == "warning"]
        assert f"worker {victim} was killed (SIGKILL) from outside" in warning
        assert again.artifact.digest == whole.artifact.digest
        assert metrics_of(again.artifact.path) == metrics_of(whole.artifact.path)
        steps = [event["step"] for event in run.events if event["event"] == "metrics"]
        assert steps == [row["step"] for row in metrics_of(whole.artifact.path)]  # each once, in order
        tally["kill of one of two workers"] += 1
