"""The other commands on a finished run, sweeps, and input that can't be right."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Smoke
from tests.e2e.tools import Workplace, files_below

pytestmark = pytest.mark.timeout(900)


def test_status_and_report_find_the_run(smoke: Smoke) -> None:
    first = smoke.place.records()[0]["id"]
    status = smoke.place.r1flow("status")
    assert status.returncode == 0
    assert first in status.stdout
    assert "rl_1" in status.stdout
    report = smoke.place.r1flow("report", first)
    assert report.returncode == 0
    assert f"Report: {smoke.place.artifact('report') / 'report.html'}" in report.stdout
    assert "pass@1" in report.stdout


def test_every_byte_of_the_store_is_as_its_manifests_say(smoke: Smoke) -> None:
    verified = smoke.place.r1flow("cache", "verify")
    assert verified.returncode == 0
    assert "16 artifacts, 0 damaged" in verified.stdout


def test_one_can_talk_to_a_stage_of_the_run(smoke: Smoke) -> None:
    lines = "12 + 3 = ?\n\nhow do i make a cake ?\n"
    said = smoke.place.r1flow("chat", "rl_2", "--max-new-tokens", "16", stdin=lines)
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
    assert said.stderr == ""
    other = smoke.place.r1flow("chat", "report", stdin="")
    assert other.returncode == 2
    assert "neither a stage with a model" in other.stderr


def test_a_sweep_builds_what_its_runs_share_once_even_at_the_same_time(smoke: Smoke, place: Workplace) -> None:
    place.with_finished(smoke.place, "curate", "base", "cold_start")  # both runs want the profile first, at once
    done = place.r1flow(
        "run", "-m", "-j", "2", "pipeline=to_rl", "reward=digits", "rl_1.steps=2,3", "orchestrator=inline",
        "tracking=none",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    stages = [stage for record in place.records() for stage in record["stages"].items()]
    built = [(name, stage["key"]) for name, stage in stages if stage["state"] == "done"]
    assert len(built) == len(set(built)) == 3
    assert sorted(name for name, _ in built) == ["profile", "rl_1", "rl_1"]
    [sweep] = place.artifacts.glob("sweeps/*/sweep.json")
    runs = json.loads(sweep.read_text())["runs"]
    assert [(run["overrides"], run["state"]) for run in runs] == [("rl_1.steps=2", "done"), ("rl_1.steps=3", "done")]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("algorithm=grpp", "grpo"),
        ("rl_1.stpes=3", "did you mean steps?"),
        ("reward.weights.formt=1", "format"),
        ("rl_1.steps=many", "expects int (got 'many')"),
        ("rl_2.inputs.model=sft_3", "sft_2"),
        ("model=pretrained", "path"),
        ("launcher.processes=0", "processes"),
        ("rl_1.quotas.reasoning=1", "2 processes"),
        ("rl_1.group_size=1", "at least two"),
        ("stages.rl_1.reward={_target_: os.system, command: ls}", "os.system"),
    ],
)
def test_bad_input_gives_2_and_one_line_that_says_what_to_do_and_writes_nothing(
    place: Workplace, override: str, told: str
) -> None:
    before = files_below(place.root)
    done = place.r1flow("run", "pipeline=smoke", override)
    assert done.returncode == 2, done.stdout
    [line] = done.stderr.splitlines()
    assert told in line
    assert "Fix: " in line
    assert done.stdout == ""
    assert files_below(place.root) == before
    assert not place.artifacts.exists()
