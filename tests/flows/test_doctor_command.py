"""The doctor during a run and after it, with the real driver, the real store and the real command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from flows.launch.events import Fanout
from flows.monitor import FINDINGS, Monitor
from flows.pipeline import Driver
from flows.stage import StageSpec, run_stage


def events(directory: Path) -> list[dict[str, Any]]:
    """All events of the latest run."""
    file = sorted(directory.glob("artifacts/runs/*/events.jsonl"))[-1]
    return [json.loads(line) for line in file.read_text().splitlines()]


def artifact(directory: Path) -> Path:
    return next(path.parent for path in directory.glob("artifacts/cache/rl/*/manifest.json"))


def test_a_run_names_what_is_wrong_while_it_trains_and_keeps_it(r1flow, tmp_path):
    done = r1flow("run", "pipeline=ill", "rl.seconds=0.05")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("zero reward (step 5): every reward of the last 5 steps was 0") == 1
    told = [event for event in events(tmp_path) if event["event"] in ("finding", "metrics", "stage")]
    finding = next(event for event in told if event["event"] == "finding")
    assert (finding["name"], finding["stage"], finding["severity"]) == ("zero_reward", "rl", "error")
    assert finding["finding"]["samples"][0]["response"].startswith("<think>")
    assert told.index(finding) < len(told) - 2, "the finding came while there were steps to come"
    kept = [json.loads(line) for line in (artifact(tmp_path) / "logs" / FINDINGS).read_text().splitlines()]
    assert kept == [finding["finding"]]
    assert r1flow("cache", "verify").returncode == 0


def test_the_doctor_prints_evidence_and_remedy_and_exits_with_1(r1flow, tmp_path):
    r1flow("run", "pipeline=ill")
    done = r1flow("doctor")
    assert done.returncode == 1, done.stderr
    for text in (
        "rl step 5: zero reward",
        "evidence",
        "every reward of the last 5 steps",
        "remedy",
        "check the verifier",
    ):
        assert text in done.stdout
    told = json.loads(r1flow("doctor", "--json").stdout)
    assert [finding["name"] for finding in told["findings"]] == ["zero_reward"]
    assert told["stages"] == {"rl": 12}


def test_a_healthy_run_has_no_findings_live_or_afterwards(r1flow, tmp_path):
    assert r1flow("run", "pipeline=ill", "rl.reward=0.5").returncode == 0
    assert not [event for event in events(tmp_path) if event["event"] == "finding"]
    assert not (artifact(tmp_path) / "logs" / FINDINGS).exists()
    done = r1flow("doctor")
    assert (done.returncode, "no findings" in done.stdout) == (0, True)
    assert json.loads(r1flow("doctor", "--json").stdout)["findings"] == []


def test_a_stage_that_failed_is_examined_as_far_as_it_came(r1flow, tmp_path):
    assert r1flow("run", "pipeline=ill", "rl.fail_at=7").returncode == 1
    done = r1flow("doctor")
    assert done.returncode == 1 and "examined rl (7 steps)" in done.stdout and "zero reward" in done.stdout


def test_bad_input_is_2(r1flow, tmp_path):
    assert r1flow("doctor").returncode == 2
    r1flow("run", "pipeline=ill", "rl.reward=0.5")
    done = r1flow("doctor", "nosuchrun")
    assert done.returncode == 2 and "no such run" in done.stderr


def test_exit_codes_are_in_the_help(r1flow):
    assert "exit codes: 0 no findings, 1 at least one, 2" in r1flow("doctor", "--help").stdout


@pytest.mark.parametrize("broken", ["metrics", "rollouts"])
def test_a_doctor_that_fails_says_so_once_and_the_stage_is_built(tmp_path: Path, broken: str, monkeypatch) -> None:
    spec = StageSpec(
        "rl", "toys.ill.train", settings={"reward": 0.0}, launcher={"_target_": "flows.launch.inprocess.InProcess"}
    )
    store, heard = ArtifactStore(tmp_path), []

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr(f"components.evaluation.doctor.read.read_{broken}", fails)
    if broken == "rollouts":
        monkeypatch.setattr("components.evaluation.doctor.watch.Watch.look", fails)
    with Fanout([heard.append]) as emit:
        emit.add(monitor := Monitor([spec], emit))

        def execute(spec: StageSpec, parents: Any, launch: Any, say: Any) -> Any:
            return run_stage(spec, parents, store, monitor.around(launch), say)

        result = Driver([spec], execute, emit=emit, allow=("components", "toys")).run()
    assert result.state == "done"
    said = [event["text"] for event in heard if "doctor" in event.get("text", "")]
    assert said == ["the doctor cannot go on, the run does: OSError: no such disk"]
