"""Sweeps as a user starts them: real processes, a real Optuna study, a real kill."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from flows.sweep.record import SweepRecord
from flows.sweep.track import SweepTracking
from tests.flows.conftest import FIXTURES, ROOT


def the_sweep(tmp_path):
    [file] = tmp_path.glob("artifacts/sweeps/*/sweep.json")
    return json.loads(file.read_text())


def records(tmp_path):
    found = [json.loads(file.read_text()) for file in tmp_path.glob("artifacts/runs/*/run.json")]
    return sorted(found, key=lambda record: record["started"])


def wait_for(look, limit_s=90.0):
    deadline = time.monotonic() + limit_s
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert seen
    return seen


def built(tmp_path):
    """(stage, key) of everything that was built, as often as it was."""
    stages = [item for record in records(tmp_path) for item in record["stages"].items()]
    return [(name, stage["key"]) for name, stage in stages if stage["state"] == "done"]


def test_the_same_command_keeps_what_is_done_and_tries_again_what_failed(r1flow, tmp_path):
    command = ("run", "-m", "second.steps=2,5000,3", "-q")
    assert r1flow(*command).returncode == 2  # a limit of the stage's own, found before anything starts
    assert not list(tmp_path.glob("artifacts/sweeps/*"))
    command = ("run", "-m", "second.fail=true,false", "-q")
    assert r1flow(*command).returncode == 1
    again = r1flow(*command)
    assert again.returncode == 1
    assert "Report:" not in again.stdout  # of an arm: with -q the sweep's own end is the result
    assert "going on, 1 of 2 runs are done" in again.stdout
    assert [record["sweep"].rpartition("/")[2] for record in records(tmp_path)] == ["0", "1", "0"]
    assert len(built(tmp_path)) == len(set(built(tmp_path)))


def test_a_finished_run_whose_artifact_is_gone_runs_again(r1flow, tmp_path):
    command = ("run", "-m", "second.steps=2,3", "-q")
    assert r1flow(*command).returncode == 0
    assert len(records(tmp_path)) == 2
    assert r1flow(*command).returncode == 0
    assert len(records(tmp_path)) == 2
    gone = records(tmp_path)[1]["stages"]["second"]["path"]
    subprocess.run(["rm", "-r", gone], check=True)
    assert r1flow(*command).returncode == 0
    assert [record["sweep"].rpartition("/")[2] for record in records(tmp_path)] == ["0", "1", "1"]


def test_kill_9_of_a_sweep_stops_its_run_at_the_next_step_and_the_same_command_goes_on(tmp_path, conf):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
    command = [sys.executable, "-m", "flows.cli", "run", "-m", "pipeline=waiting", "wait.seconds=60,0.1"]
    command += ["--config-dir", str(conf)]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("artifacts/cache/wait/*.partial/begun")))
    second = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert "is at work in another process" in second.stderr
    process.kill()
    process.wait()
    wait_for(lambda: [record["state"] for record in records(tmp_path)] == ["interrupted"])
    assert the_sweep(tmp_path)["runs"][0]["state"] == "running"  # nobody was left to write it
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: len(records(tmp_path)) == 2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "going on, 0 of 2 runs are done" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("joblib", ["sweep=joblib"]),
        ("submitit", ["sweep=submitit", "sweep.launcher.cluster=local"]),
        ("ray", ["sweep=ray"]),
    ],
)
def test_another_launcher_runs_the_same_sweep(r1flow, tmp_path, package, options):
    pytest.importorskip(package)
    done = r1flow("run", "-m", *options, "-j", "2", "second.steps=2,3", "second.fail=false,true")
    assert done.returncode == 1, done.stderr
    states = [run["state"] for run in the_sweep(tmp_path)["runs"]]
    assert states == ["done", "failed", "done", "failed"]
    arms = json.loads(next(tmp_path.glob("artifacts/sweeps/*/summary.json")).read_text())["arms"]
    assert [arm["objective"] and arm["objective"]["value"] for arm in arms] == [2, None, 3, None]
    assert "asked to fail" in next(tmp_path.glob("artifacts/sweeps/*/run-1.log")).read_text()


def test_a_search_finds_what_the_objective_asks_for_and_goes_on_as_if_it_had_not_stopped(r1flow, tmp_path):
    pytest.importorskip("optuna")
    command = (
        "run",
        "-m",
        "-q",
        "sweep=optuna",
        "sweep.search.startup=2",
        "second.steps=int(interval(1,20))",
        "seed=1,2",
    )
    first = r1flow(*command, "sweep.search.trials=2", "objective={metric: second/steps, direction: minimise}")
    assert first.returncode == 0, first.stderr
    done = r1flow(*command, "sweep.search.trials=3", "objective={metric: second/steps, direction: minimise}")
    assert done.returncode == 0, done.stderr
    assert "going on, 4 of 6 runs are done" in done.stdout
    runs = the_sweep(tmp_path)["runs"]
    assert [run["trial"] for run in runs] == [0, 0, 1, 1, 2, 2]  # a trial is a run for each seed
    steps = [int(run["overrides"].split()[0].partition("=")[2]) for run in runs]
    assert len(set(steps)) > 1
    summary = json.loads(next(tmp_path.glob("artifacts/sweeps/*/summary.json")).read_text())
    assert summary["objective"]["value"] == min(steps)
    assert summary["objective"]["best"] == f"second.steps={min(steps)}"
    import optuna

    [journal] = tmp_path.glob("artifacts/sweeps/*/optuna.jsonl")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    study = optuna.load_study(study_name=the_sweep(tmp_path)["digest"], storage=storage)
    assert [trial.value for trial in study.trials] == steps[::2]


@pytest.mark.slow
def test_a_trial_whose_run_fails_does_not_end_the_search(r1flow, tmp_path):
    pytest.importorskip("optuna")
    done = r1flow("run", "-m", "-q", "sweep=optuna", "sweep.search.trials=2", "second.fail=true,false", "first.lr=0.1")
    assert done.returncode in (0, 1)
    runs = the_sweep(tmp_path)["runs"]
    assert {run["overrides"]: run["state"] for run in runs}.items() <= {
        "second.fail=True": "failed",
        "second.fail=False": "done",
    }.items()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["sweep=optuna", "first.steps=interval(1,9)"], "expects int (got 1.0)"),
        (["sweep=optuna", "first.lr=interval(0.2,0.1)"], "is no interval"),
        (["sweep=optuna", "seed=1,2"], "has nothing to search"),
        (["sweep=optuna", "sweep.search.trails=3", "first.lr=interval(0.1,0.2)"], "did you mean"),
        (["sweep=optuna", "sweep.search.trials=0", "first.lr=interval(0.1,0.2)"], "at least 1"),
        (["first.lr=interval(0.1,0.2)"], "has no list of values"),
        (["sweep.launcher={_target_: os.system}", "first.steps=1,2"], "os.system"),
        (["sweep.launcher.jbos=3", "first.steps=1,2"], "did you mean"),
        (["objective.direction=up", "first.steps=1,2"], "maximise"),
        (["objective.metric=[1]", "first.steps=1,2"], "neither a metric nor weights"),
        (["reward.weights.format=0.1,abc"], "reward.weights.format: expects a number (got 'abc'). Fix: write a number"),
        (["artifacts=a,b"], "artifacts: can't be swept (got 'artifacts=a,b'). Fix: give one: arms share it"),
        (["objective.metric=second/steps,first/steps"], "objective.metric: can't be swept"),
        (["seed="], "seed=: has no value. Fix: write seed=VALUE, or several: seed=1,2,3"),
        (["sweep=optuna", "objective.metric=pass@1", "first.lr=interval(0.1,0.2)"], "no stage of this pipeline"),
    ],
)
def test_a_sweep_that_cannot_be_right_is_refused_before_anything_runs(r1flow, tmp_path, overrides, told):
    if "sweep=optuna" in overrides:
        pytest.importorskip("optuna")
    done = r1flow("run", "-m", *overrides)
    assert done.returncode == 2, done.stdout
    assert told in done.stderr
    assert not list(tmp_path.glob("artifacts/sweeps/*/"))


def test_the_last_line_of_json_has_the_objective(r1flow, tmp_path):
    done = r1flow("run", "--json", "objective.metric={second/steps: 1, first/steps: 0.5}")
    assert done.returncode == 0
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["objective"] == {
        "value": 4.0,  # 2 + 0.5 · 4
        "terms": {"second/steps": 2.0, "first/steps": 4.0},
        "direction": "maximise",
        "problem": "",
    }


def test_a_sweep_gives_json_too(r1flow, tmp_path):
    done = r1flow("run", "-m", "--json", "second.steps=2,3", "objective.metric=second/steps")
    [line] = done.stdout.splitlines()
    told = json.loads(line)
    assert [arm["objective"]["value"] for arm in told["arms"]] == [2, 3]
    assert told["objective"]["best"] == "second.steps=3"


def test_a_value_that_is_listed_twice_is_one_run_however_it_is_spelt(r1flow, tmp_path):
    done = r1flow("run", "-m", "-q", "seed=1,1", "second.lr=0.1,0.10,1,1.0", "objective.metric=second/steps")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("6 runs are another one once more, built and counted once") == 1
    assert [run["overrides"] for run in the_sweep(tmp_path)["runs"]] == ["second.lr=0.1", "second.lr=1"]
    assert len(records(tmp_path)) == 2
    summary = json.loads(next(tmp_path.glob("artifacts/sweeps/*/summary.json")).read_text())
    assert [(arm["label"], arm["runs"], arm["objective"]["n"]) for arm in summary["arms"]] == [
        ("second.lr=0.1", 1, 1),
        ("second.lr=1", 1, 1),
    ]
    again = r1flow("run", "-m", "-q", "seed=1,1", "second.lr=0.1,0.10,1,1.0", "objective.metric=second/steps")
    assert "going on, 2 of 2 runs are done" in again.stdout


def test_a_search_tries_a_choice_and_a_seed_once_however_they_are_spelt(r1flow, tmp_path):
    pytest.importorskip("optuna")
    command = ("run", "-m", "-q", "sweep=optuna", "sweep.search.trials=1", "objective.metric=second/steps")
    done = r1flow(*command, "second.lr=0.1,0.10", "seed=1,1,2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("seed=1 (twice)") == 1
    assert [run["overrides"] for run in the_sweep(tmp_path)["runs"]] == [
        "second.lr=0.1 seed=1",
        "second.lr=0.1 seed=2",
    ]


def test_a_report_of_something_that_is_not_there_names_the_sweeps_that_are(r1flow, tmp_path):
    assert r1flow("run", "-m", "-q", "second.steps=2").returncode == 0
    [sweep] = [folder.name for folder in tmp_path.glob("artifacts/sweeps/*/")]
    done = r1flow("report", "nosuch")
    assert done.returncode == 2
    assert done.stderr.startswith("runs: no such run or sweep (got 'nosuch'). Fix: ")
    assert f"sweeps: {sweep}" in done.stderr


def test_each_pipeline_that_is_swept_has_a_run_of_the_sweep_in_its_experiment(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("flows.sweep.track.build", lambda node, allow: told.append)
    record = SweepRecord(tmp_path, "digest", [{"overrides": "pipeline=a", "state": "done"}])
    tracking = SweepTracking({"tracking": {"_target_": "x.y"}}, ["a", "b"], record)
    tracking.begin()
    tracking.end({"objective": None, "arms": []}, "done")
    assert [(event["pipeline"], event["state"]) for event in told] == [
        ("a", "running"), ("b", "running"), ("a", "done"), ("b", "done"),
    ]  # fmt: skip
