"""The plan says of every stage what made it stale, also where an input has still to be built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore
from flows.plan import make_plan
from flows.stage import StageSpec, run_stage

FIRST = StageSpec("first", "planned_stage.go", {}, {"lr": 1})
SECOND = StageSpec("second", "planned_stage.go", {"model": "first"}, {"lr": 2})


@pytest.fixture
def code(tmp_path: Path, monkeypatch) -> Path:
    file = tmp_path / "planned_stage.py"
    file.write_text("def go(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return file


@pytest.fixture
def store(tmp_path: Path, code: Path) -> ArtifactStore:
    """Both stages built once."""
    store = ArtifactStore(tmp_path / "cache")
    build(store, [FIRST, SECOND])
    return store


def build(store: ArtifactStore, specs: list[StageSpec]) -> None:
    done = {}
    for spec in specs:
        parents = {name: done[source] for name, source in spec.inputs.items()}

        def launch(spec: StageSpec, parents, claim, emit) -> dict:
            (claim.draft / "x").write_text(f"{spec.settings} {spec.seed}")
            return {}

        done[spec.name] = run_stage(spec, parents, store, launch, lambda text: None)


def plan(store: ArtifactStore, *specs: StageSpec, ignore_code: bool = False) -> list[tuple[str, str]]:
    return [(stage.state, stage.why) for stage in make_plan(specs, store, ignore_code=ignore_code)]


def test_nothing_is_stale_after_a_run(store: ArtifactStore):
    assert plan(store, FIRST, SECOND) == [("reused", ""), ("reused", "")]


def test_a_setting(store: ArtifactStore):
    changed = replace(FIRST, settings={"lr": 3})
    assert plan(store, changed, SECOND) == [("to build", "lr: 1 → 3"), ("to build", "after first")]


def test_a_setting_of_a_stage_whose_input_is_to_be_built_as_well(store: ArtifactStore):
    changed = (replace(FIRST, settings={"lr": 3}), replace(SECOND, settings={"lr": 4}))
    assert plan(store, *changed)[1] == ("to build", "lr: 2 → 4; after first")


def test_the_seed(store: ArtifactStore):
    changed = (replace(FIRST, seed=1), replace(SECOND, seed=1))
    assert plan(store, *changed) == [("to build", "seed: 0 → 1"), ("to build", "seed: 0 → 1; after first")]


def test_a_parent_that_was_rebuilt_to_something_else(store: ArtifactStore):
    build(store, [changed := replace(FIRST, settings={"lr": 3})])
    [first, (state, why)] = plan(store, changed, SECOND)
    assert first == ("reused", "")
    assert state == "to build"
    assert why.startswith("input model changed (first/")


def test_a_source_file_and_nothing_that_is_no_code(store: ArtifactStore, code: Path):
    code.write_text('"""Doc."""\n\ndef go():  # why\n    """Doc."""\n    return (1)\n')
    assert plan(store, FIRST, SECOND) == [("reused", ""), ("reused", "")]
    code.write_text("def go(): return 2\n")
    assert plan(store, FIRST, SECOND)[0] == ("to build", "source planned_stage.py edited")
    reused = "reused although its code changed since (cache.code=ignore): source planned_stage.py edited"
    assert plan(store, FIRST, SECOND, ignore_code=True) == [("reused", reused), ("reused", reused)]


def test_a_stage_that_was_never_built(store: ArtifactStore):
    third = replace(SECOND, name="third")
    assert plan(store, FIRST, third) == [("reused", ""), ("to build", "never built")]
    assert plan(store, replace(FIRST, seed=1), third)[1] == ("to build", "after first")
