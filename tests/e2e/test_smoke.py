"""The first run on a fresh machine and the second one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter

import pytest

from components.rollout.record import read_rows
from tests.e2e.conftest import Smoke
from tests.e2e.tools import ROOT, STAGES, Workplace, becomes, files_below, rollouts
from tests.invariants.held_out import Search, held_out_prompts, kept_texts, preference_texts, training_texts

pytestmark = pytest.mark.timeout(900)


def test_one_command_builds_every_stage_and_shows_what_each_did(smoke: Smoke) -> None:
    assert smoke.done.returncode == 0, smoke.done.stdout + smoke.done.stderr
    assert smoke.done.stderr == ""
    record = smoke.place.records()[0]
    assert (record["state"], record["exit"], record["pipeline"]) == ("done", 0, "smoke")
    assert {name: stage["state"] for name, stage in record["stages"].items()} == dict.fromkeys(STAGES, "done")
    assert all(stage["wall_s"] > 0 for stage in record["stages"].values())
    for row in ("base", "cold_start", "rl_1", "sft_2", "rl_2"):
        assert f"\n {row} " in smoke.done.stdout  # the evaluation table


def test_the_report_holds_the_table_and_asks_nobody_for_anything(smoke: Smoke) -> None:
    folder = smoke.place.artifact("report")
    assert f"Report: {folder / 'report.html'}" in smoke.done.stdout.replace("\n", "")
    page = (folder / "report.html").read_text()
    assert all(stage in page for stage in STAGES if not stage.startswith(("eval", "report")))
    assert not any(f'{name}="http' in page for name in ("src", "href"))
    summary = json.loads((folder / "summary.json").read_text())
    text = json.dumps(summary)
    assert all(name in text for name in ("pass@1", "unsafe_refused", "benign_answered"))


def test_no_process_asked_for_an_address_outside_this_machine(smoke: Smoke) -> None:
    log = smoke.place.network_log
    assert not log.exists(), log.read_text()


def test_nothing_is_written_outside_the_artifacts(smoke: Smoke) -> None:
    root = smoke.place.root
    assert files_below(root / "home") == set()
    assert files_below(root / "tmp") == set()
    assert files_below(smoke.place.project) == files_below(ROOT / "tests/e2e/user", but=("__pycache__",))
    names = {entry.name for entry in smoke.place.artifacts.iterdir()}
    assert names == {"cache", "runs", "mlflow", "prefect", "gate"}
    assert not list(smoke.place.artifacts.glob("cache/*/*.partial"))


def test_no_process_stays_but_the_server(smoke: Smoke) -> None:
    assert smoke.after == {}
    assert smoke.place.servers()


def test_mlflow_has_a_run_and_a_child_for_every_stage(smoke: Smoke) -> None:
    look = smoke.place.mlflow
    runs = {run: (name, status) for run, name, status in look("select run_uuid, name, status from runs")}
    parents = dict(look("select run_uuid, value from tags where key = 'mlflow.parentRunId'"))
    metrics = Counter(run for (run,) in look("select run_uuid from metrics"))
    settings = {(run, key): value for run, key, value in look("select run_uuid, key, value from params")}
    [parent] = [run for run, (name, _) in runs.items() if name == smoke.place.records()[0]["id"]]
    children = {runs[run][0]: run for run, of in parents.items() if of == parent}
    assert sorted(children) == sorted(STAGES)
    assert {status for run, (_, status) in runs.items() if run in {parent, *children.values()}} == {"FINISHED"}
    assert metrics[children["rl_1"]] >= 6 * 5  # six steps of at least reward, accuracy, length, lr, gradient norm
    assert settings[children["rl_1"], "steps"] == "6"


def test_prefect_has_the_run_and_the_state_of_every_stage(smoke: Smoke) -> None:
    run = smoke.place.records()[0]["id"]
    assert becomes("Completed", lambda: smoke.place.flow_state(run)) == "Completed"
    done = dict.fromkeys(STAGES, "Completed")
    assert becomes(done, lambda: smoke.place.task_states(run)) == done
    [shown] = smoke.place.ask_prefect("flow_runs", flow_runs={"name": {"any_": [run]}})
    assert f"/runs/flow-run/{shown['id']}" in smoke.done.stdout.replace("\n", "")


def test_no_stage_learned_from_a_test_prompt(smoke: Smoke) -> None:
    """Not even by way of what another stage made of the data."""
    place = smoke.place
    curated = place.artifact("curate")
    learned = {
        **training_texts(curated),
        "preferences": preference_texts(place.artifact("preferences")),
        "rejection": kept_texts(place.artifact("rejection")),
        **{stage: [row["prompt"] for row in rollouts(place.artifact(stage))] for stage in ("rl_1", "rl_2")},
    }
    assert len(learned["rl_1"]) == 6 * 8 * 4
    search = Search(held_out_prompts(curated))
    assert {name: found for name, texts in learned.items() if (found := search(texts))} == {}
    assert search(row["prompt"] for row in read_rows(place.artifact("eval_base") / "answers.parquet"))


def test_the_second_run_reuses_everything_within_seconds(smoke: Smoke) -> None:
    before = files_below(smoke.place.artifacts / "cache")
    began = time.monotonic()
    done = smoke.place.r1flow("run", "pipeline=smoke")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert set(smoke.place.states().values()) == {"reused"}
    [driver_s] = [event["wall_s"] for event in smoke.place.events() if "wall_s" in event and event["event"] == "run"]
    print(f"driver {driver_s:.2f} s, whole command {took:.2f} s")
    assert driver_s <= 5
    first = smoke.place.records()[0]["id"]
    assert done.stdout.count(f"by run {first}") == len(STAGES)
    assert files_below(smoke.place.artifacts / "cache") == before
    run = smoke.place.records()[-1]["id"]
    cached = dict.fromkeys(STAGES, "Cached")
    assert becomes(cached, lambda: smoke.place.task_states(run)) == cached


def test_the_guard_against_the_network_guards(place: Workplace) -> None:
    """Without this the test above could pass because nothing watches."""
    code = "import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=5)"
    asked = subprocess.run(
        [sys.executable, "-c", code], env=place.environment(), capture_output=True, text=True, check=False
    )
    assert "no network in this test, asked for 192.0.2.1" in asked.stderr
    assert place.network_log.read_text().startswith("192.0.2.1 from ")
