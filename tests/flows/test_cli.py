"""The command itself, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"


def record(directory: Path) -> dict:
    """The latest run record."""
    return json.loads(sorted(directory.glob("artifacts/runs/*/run.json"))[-1].read_text())


def test_a_run_builds_everything_and_the_next_one_reuses_it(r1flow, tmp_path):
    first = r1flow("run")
    assert first.returncode == 0, first.stderr
    assert "report.html" in first.stdout
    assert {stage["state"] for stage in record(tmp_path)["stages"].values()} == {"done"}
    time.sleep(1)
    second = r1flow("run")
    assert second.returncode == 0
    assert {stage["state"] for stage in record(tmp_path)["stages"].values()} == {"reused"}


def test_the_plan_says_what_would_be_built_and_why_and_builds_nothing(r1flow, tmp_path):
    assert "4 to build" in r1flow("plan").stdout
    assert not list(tmp_path.glob("artifacts/cache/*/*"))
    r1flow("run")
    assert "4 reused" in r1flow("plan").stdout
    changed = r1flow("plan", "second.steps=9").stdout
    assert "steps: 2 → 9" in changed
    assert "after second" in changed
    assert "2 to build, 2 reused" in changed


def test_a_failing_stage_gives_1_and_names_it(r1flow, tmp_path):
    done = r1flow("run", "second.fail=true")
    assert done.returncode == 1
    assert "second failed: RuntimeError: asked to fail" in done.stdout
    content = record(tmp_path)
    assert (content["state"], content["exit"]) == ("failed", 1)
    assert [stage["state"] for stage in content["stages"].values()] == ["done", "done", "failed", "skipped"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["rn"],
        [],
        ["run", "sed=1"],
        ["run", "first.stpes=1"],
        ["run", "pipeline=cyclic"],
        ["run", "--jobs", "0"],
        ["run", "--nonsense"],
        ["plan", "first.steps=x"],
        ["run", "-m", "seed=0,1", "first.steps=x"],
        ["report"],
        ["report", "nothing"],
        ["chat", "rl_9"],
        ["chat", "x", "--temperature", "-1"],
        ["cache", "wipe"],
    ],
)
def test_bad_input_gives_2_with_a_remedy_and_no_traceback_and_no_file(r1flow, tmp_path, arguments):
    done = r1flow(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
    assert not list(tmp_path.glob("artifacts/runs/*"))
    assert not list(tmp_path.glob("artifacts/sweeps/*"))
    assert not list(tmp_path.glob("outputs"))


def test_a_configuration_directory_that_is_not_there_gives_2(tmp_path):
    command = [sys.executable, "-m", "flows.cli", "plan", "--config-dir", "nowhere"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--config-dir" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_its_code_and_says_so_in_the_record(tmp_path, conf, number, code):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
    command = [sys.executable, "-m", "flows.cli", "run", "pipeline=waiting", "--config-dir", str(conf)]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("artifacts/cache/wait/*.partial/begun")))
    process.send_signal(number)
    assert process.wait(120) == code
    content = record(tmp_path)
    assert (content["state"], content["exit"]) == ("interrupted", code)


def test_ctrl_c_pressed_again_and_again_gives_130_and_not_a_death_by_signal(tmp_path, conf):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
    command = [sys.executable, "-m", "flows.cli", "run", "pipeline=waiting", "--config-dir", str(conf)]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("artifacts/cache/wait/*.partial/begun")))
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    assert process.returncode == 130
    assert (record(tmp_path)["state"], record(tmp_path)["exit"]) == ("interrupted", 130)


def test_a_killed_run_reads_killed_and_another_one_at_work_reads_running(r1flow, tmp_path, conf):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
    command = [sys.executable, "-m", "flows.cli", "run", "pipeline=waiting", "--config-dir", str(conf)]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("artifacts/cache/wait/*.partial/begun")))
    assert "running" in r1flow("status").stdout
    process.kill()
    process.wait()
    status = r1flow("status").stdout
    assert "killed" in status
    assert "begun" in status


def test_status_and_cache_show_what_there_is(r1flow, tmp_path):
    assert "No runs" in r1flow("status").stdout
    r1flow("run")
    status = r1flow("status").stdout
    assert "4 done" in status
    assert str(tmp_path / "artifacts" / "cache" / "first") in status
    assert "4 artifacts, 0 damaged" in r1flow("cache", "verify").stdout
    next(tmp_path.glob("artifacts/cache/first/*/weight.txt")).write_text("other")
    damaged = r1flow("cache", "verify")
    assert damaged.returncode == 1
    assert "weight.txt" in damaged.stdout
    assert "1 damaged" in damaged.stdout


def test_the_report_of_a_run_is_found_by_a_part_of_its_id(r1flow, tmp_path):
    r1flow("run")
    done = r1flow("report", record(tmp_path)["id"].rpartition("-")[2])
    assert done.returncode == 0
    assert "report.html" in done.stdout


def test_a_sweep_runs_every_combination_in_a_process_of_its_own_and_goes_on_after_a_failure(r1flow, tmp_path):
    done = r1flow("run", "-m", "second.fail=true,false", "-q")
    assert done.returncode == 1, done.stderr
    [file] = tmp_path.glob("artifacts/sweeps/*/sweep.json")
    states = [(job["overrides"], job["state"]) for job in json.loads(file.read_text())["runs"]]
    assert states == [
        ("second.fail=True", "failed"),
        ("second.fail=False", "done"),
    ]
    assert len(list(tmp_path.glob("artifacts/cache/numbers/*[!k]"))) == 1  # what arms share is built once
    records = [json.loads(path.read_text()) for path in tmp_path.glob("artifacts/runs/*/run.json")]
    assert {r["sweep"].rpartition("/")[0] for r in records} == {file.parent.name}
    assert len({r["pid"] for r in records}) == 2


def test_a_sweep_with_one_bad_combination_starts_none(r1flow, tmp_path):
    done = r1flow("run", "-m", "first.steps=1,x")
    assert done.returncode == 2
    assert "first.steps=x" in done.stderr
    assert not list(tmp_path.glob("artifacts/sweeps/*"))


def test_an_interrupted_sweep_interrupts_its_run_and_starts_no_other(tmp_path, conf):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "run",
        "-m",
        "pipeline=waiting",
        "seed=1,2",
        "--config-dir",
        str(conf),
    ]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("artifacts/cache/wait/*.partial/begun")))
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    [file] = tmp_path.glob("artifacts/sweeps/*/sweep.json")
    assert [job["state"] for job in json.loads(file.read_text())["runs"]] == ["interrupted", "waiting"]


def test_a_planted_secret_is_nowhere_on_disk_or_on_the_screen(r1flow, tmp_path):
    secret = "hf_abcdefghijklmnop1234"
    done = r1flow(
        "run",
        f"first.model.hub_token={secret}",
        "second.model.hub_token=${oc.env:PLANTED_TOKEN}",
        environment={"PLANTED_TOKEN": "second-secret-9876"},
    )
    assert done.returncode == 0, done.stderr
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    for hidden in (secret, "second-secret-9876"):
        assert hidden not in done.stdout + done.stderr
        assert not [file for file in written if hidden.encode() in file.read_bytes()]


def test_help_is_quick_and_imports_nothing_heavy(r1flow):
    for command in ([], ["run"], ["plan"], ["status"], ["report"], ["ui"], ["chat"], ["cache"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "flows.cli", *command, "--help"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        assert "usage: r1flow" in done.stdout
        assert not {"torch", "hydra", "omegaconf", "rich", "pydantic"} & {
            line.rpartition("|")[2].strip() for line in done.stderr.splitlines()
        }


def test_the_composed_configuration_can_be_printed(r1flow):
    done = r1flow("plan", "--config", "first.lr=3")
    assert "steps: 4" in done.stdout
    assert "lr: 3" in done.stdout


def test_a_group_that_no_stage_uses_is_mentioned(r1flow):
    assert (
        "no stage of pipeline waiting uses algorithm"
        in r1flow("run", "pipeline=waiting", "wait.seconds=0", "algorithm=wide").stderr
    )


def wait_for(condition, limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
