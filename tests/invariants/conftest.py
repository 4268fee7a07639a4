"""Finished small stages, and stages of the shipped pipeline run as the driver runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from components.runtime import StageArtifact
from flows.build import stage_specs
from flows.compose import compose
from flows.launch import Context
from flows.launch.torchrun import Torchrun
from flows.signals import Stop
from flows.stage import StageSpec, run_stage
from tests.stages.conftest import base, data, grpo, inputs, rl_settings  # noqa: F401 – fixtures

ALLOW = ("components", "tests.invariants.parts")
RunStage = Callable[..., StageArtifact]


@cache
def _smoke() -> dict[str, StageSpec]:
    return {spec.name: spec for spec in stage_specs(compose(["pipeline=smoke"]))}


def spec(name: str, **settings: Any) -> StageSpec:
    """A stage of the smoke pipeline with other settings."""
    shipped = _smoke()[name]
    return dataclasses.replace(shipped, settings={**shipped.settings, **settings})


@pytest.fixture
def run(tmp_path: Path) -> RunStage:
    """Runs a stage in N real processes, in a store of its own: how many there are is not part of its key."""

    def run_it(of: StageSpec, parents: Mapping[str, StageArtifact], processes: int, threads: int = 1) -> StageArtifact:
        launcher = Torchrun(processes=processes, threads=threads, device="cpu")
        context = Context(lambda event: None, Stop(), ALLOW)
        store = ArtifactStore(tmp_path / f"store-{processes}-{threads}")
        mine = {name: parents[name] for name in of.inputs}
        return run_stage(
            of,
            mine,
            store,
            lambda spec, given, claim, emit: launcher(spec, given, claim, context),
            lambda text: None,
        )

    return run_it
