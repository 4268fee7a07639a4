"""Estimates come from what was measured, scaled by work, and say how sure they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from components.runtime import StageArtifact
from flows.effort import effort
from flows.estimate import LOADED, OWN_S, UNSURE, Estimate, History, available_memory, room, total_s, warnings
from flows.plan import costs_of, make_plan, plan_table
from flows.stage import StageSpec, digest_of, source_files, stage_key, targets
from flows.status import size_text

STAGES = "components.stages"
TWO = {"processes": 2, "threads": 1}
MODEL = {"_target_": "components.models.tiny.Tiny", "hidden_size": 96}


def specs(**changes: Mapping[str, Any]) -> list[StageSpec]:
    found = [
        StageSpec("curate", f"{STAGES}.curate.curate", {}, {"source": {"scale": 1.0}}, launcher=TWO),
        StageSpec("base", f"{STAGES}.base_model.base_model", {"data": "curate"}, {"model": MODEL, "steps": 100}),
        StageSpec("rl", f"{STAGES}.rl.rl", {"model": "base", "data": "curate"}, {"steps": 50, "quotas": {"x": 4}}),
        StageSpec("eval", f"{STAGES}.evaluate.evaluate", {"model": "rl", "data": "curate"}, {"samples": 4}),
    ]
    return [replace(spec, launcher=TWO, settings={**spec.settings, **changes.get(spec.name, {})}) for spec in found]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """One earlier run: curate 10 s, base 101 s, rl 61 s, eval 5 s; each worker computed for half of that."""
    store = ArtifactStore(tmp_path / "cache")
    walls = {"curate": 10.0, "base": 101.0, "rl": 61.0, "eval": 5.0}
    metrics = {"curate": {"test": 200.0, "fresh": 1000.0}, "base": {"parameters": 1000.0}}
    done: dict[str, StageArtifact] = {}
    for spec in specs():
        parents = {name: done[source] for name, source in spec.inputs.items()}
        made_of = source_files(targets(spec))
        with store.claim(spec.name, stage_key(spec, parents, digest_of(made_of))) as claim:
            (claim.draft / "logs").mkdir(parents=True)
            (claim.draft / "data").write_bytes(b"x" * 1000)
            worker = {"wall_s": walls[spec.name], "cpu_s": walls[spec.name] / 2, "peak_rss_mb": 100.0}
            (claim.draft / "logs" / "workers.json").write_text(json.dumps({"processes": 2, "workers": [worker] * 2}))
            manifest = {"target": spec.target, "settings": spec.settings, "seed": spec.seed, "source": made_of}
            found = metrics.get(spec.name, {})
            done[spec.name] = claim.commit(metrics=found, parents=parents, spec=manifest, wall_s=walls[spec.name])
    return store


def estimates(store: ArtifactStore, wanted: list[StageSpec]) -> dict[str, Estimate]:
    history = History(wanted, store)
    return {spec.name: found for spec in wanted if (found := history(spec)) is not None}


def test_the_same_stage_takes_what_it_took_and_less_on_an_idle_machine(store: ArtifactStore) -> None:
    found = estimates(store, [replace(spec, seed=1) for spec in specs()])["rl"]
    assert found.s == pytest.approx(61.0)
    assert found.low_s == pytest.approx(30.5)  # what its workers computed
    assert found.high_s == pytest.approx(61.0 * LOADED)
    assert found.memory == 2 * 100 * 2**20
    assert found.disk == pytest.approx(1000, abs=400)
    assert len(found.source) == 8


def test_twice_the_steps_take_twice_the_time_but_for_what_every_stage_takes(store: ArtifactStore) -> None:
    found = estimates(store, specs(rl={"steps": 100}))["rl"]
    assert found.s == pytest.approx(OWN_S + 2 * (61.0 - OWN_S))
    assert found.source.endswith(" × 2")


def test_half_the_processes_take_twice_the_time_and_half_the_memory(store: ArtifactStore) -> None:
    one = [replace(spec, launcher={"processes": 1}) for spec in specs()]
    found = estimates(store, one)["base"]
    assert found.s == pytest.approx(OWN_S + 2 * (101.0 - OWN_S))
    assert found.memory == 100 * 2**20


def test_more_data_make_what_goes_through_them_longer(store: ArtifactStore) -> None:
    found = estimates(store, specs(curate={"source": {"scale": 3.0}}))
    assert found["eval"].s == pytest.approx(OWN_S + 3 * (5.0 - OWN_S))
    assert found["rl"].s == pytest.approx(61.0)


def test_a_stage_that_was_over_at_once_says_nothing_of_one_with_much_to_do(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {scale: specs(curate={"source": {"scale": scale}}) for scale in (4.0, 10.0)}
    assert "eval" in estimates(store, more[10.0])  # it took 5 s, five times what is any stage's own
    monkeypatch.setattr("flows.estimate.MUCH", 5.5)
    assert "eval" not in estimates(store, more[10.0])
    assert "eval" in estimates(store, more[4.0])


def test_other_data_and_another_model_make_an_estimate_unsure(store: ArtifactStore) -> None:
    other_data = estimates(store, specs(curate={"source": {"scale": 1.0, "path": "x"}}))["eval"]
    assert other_data.high_s == pytest.approx(5.0 * LOADED * UNSURE)
    other_model = estimates(store, specs(base={"model": {**MODEL, "hidden_size": 960}}))["rl"]
    assert other_model.high_s == pytest.approx(61.0 * LOADED * UNSURE)
    assert other_model.source.endswith(", another model")


def test_a_stage_never_built_has_no_estimate(store: ArtifactStore) -> None:
    new = StageSpec("sft", f"{STAGES}.sft.sft", {"model": "base"}, {}, launcher=TWO)
    assert "sft" not in estimates(store, [*specs(), new])


@pytest.mark.parametrize(
    ("kind", "settings", "work"),
    [
        ("rl.rl", {"steps": 10, "quotas": {"a": 3, "b": 1}, "group_size": 4}, 160),
        ("rl.rl", {"steps": 10, "quotas": {"a": 4}}, 320),
        ("sft.sft", {"epochs": 2, "files": {"data": ["cold_start.jsonl"]}}, 16_000),
        ("sft.sft", {"epochs": 2, "files": {"data": ["cold_start.jsonl"]}, "max_examples": 320}, 640),
        ("evaluate.evaluate", {"samples": 4}, 640 * 5),
        ("evaluate.evaluate", {"samples": 4, "greedy": False, "split": "dev"}, 100 * 4),
        ("profile.profile", {"samples": 8}, 160 * 8),
        ("reject.reject", {"prompts": 4000, "samples": 4}, 3000 * 4),
        ("base_model.base_model", {"steps": 5, "batch_size": 4, "context": 8}, 160),
        ("report.report", {}, None),
        ("sft.sft", {"tokens": {"_target_": "x"}}, None),
    ],
)
def test_work_by_hand(kind: str, settings: dict[str, Any], work: float | None) -> None:
    counts = {"cold_start": 8000, "test": 640, "dev": 100, "profile": 160, "fresh": 3000}
    assert effort(f"{STAGES}.{kind}", settings, counts) == work


def test_the_whole_run_is_scheduled_as_the_driver_does_it() -> None:
    def spec(name: str, *inputs: str, processes: int = 1) -> StageSpec:
        return StageSpec(name, "x.y", {i: i for i in inputs}, launcher={"processes": processes})

    chain = [spec("a", processes=2), spec("b", "a"), spec("c", "a"), spec("d", "b", "c", processes=2)]
    seconds = {"a": 10.0, "b": 5.0, "c": 7.0, "d": 1.0}
    slots = lambda spec: spec.launcher["processes"]  # noqa: E731
    assert total_s(chain, seconds, slots, 2) == 10 + 7 + 1
    assert total_s(chain, seconds, slots, 1) == 10 + 5 + 7 + 1
    assert total_s(chain, {"b": 5.0}, slots, 2) == 5.0  # the others are reused


def test_what_will_not_fit_is_named_with_the_remedy() -> None:
    large = Estimate(1, 2, 3, 5 * 2**30, 9 * 2**30, "x")
    found = list(warnings({"rl": large}, free_disk=2**30, free_memory=2**30))
    assert found == [
        "the run needs about 5.0 GiB of disk and 1.0 GiB are free. Fix: r1flow cache gc, or artifacts=DIR on another "
        "disk",
        "rl needs up to 9.0 GiB of memory and 1.0 GiB are available. Fix: lower rl.micro_batch_tokens, or "
        "launcher.processes=1",
    ]
    assert list(warnings({"rl": large}, free_disk=2**40, free_memory=None)) == []


def test_room_is_asked_of_the_disk_that_will_hold_the_artifacts(tmp_path: Path) -> None:
    disk, _ = room(tmp_path / "not" / "made" / "yet")
    assert disk > 0
    memory = available_memory()
    assert memory is None or memory > 2**20
    assert size_text(1500) == "1 KiB"


def test_the_plan_shows_them_and_says_what_it_does_not_know(store: ArtifactStore, tmp_path: Path) -> None:
    new = StageSpec("sft", f"{STAGES}.sft.sft", {"model": "rl"}, {}, launcher=TWO)
    wanted = [*(replace(spec, seed=1) for spec in specs()), new]
    plan, found = make_plan(wanted, store), estimates(store, wanted)
    lines, wrong = costs_of(wanted, plan, found, tmp_path, 2)
    assert lines[0].startswith("about 2:57 in all (1:28 on an idle machine to 5:54 on a loaded one); disk ")
    assert lines[1].startswith("no figures for sft: not built here before. r1flow plan --measure")
    assert wrong == []
    assert [column.header for column in plan_table("r1", plan, found).columns][3:7] == [
        "time",
        "disk",
        "memory",
        "from",
    ]
    assert [column.header for column in plan_table("r1", plan).columns][3:] == ["inputs", "why"]
