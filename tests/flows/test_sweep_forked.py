"""Arms that are forked: processes like any other, each with its own input, output, directory, group and workers."""

import json
import os
import sysconfig

import pytest

from flows.compose import compose, hand_over
from flows.launch.marks import are_current, loaded_files, marks_of
from flows.sweep.forked import Forks
from tests.flows.conftest import ROOT

WORKERS = ("launcher=torchrun", "launcher.processes=1")


def test_what_was_handed_over_is_composed_once(conf):
    config = compose(["second.steps=7"], conf)
    hand_over(config)
    assert compose(["second.steps=7"], conf) is config
    again = compose(["second.steps=7"], conf)
    assert again is not config
    assert again.root == config.root
    assert compose(["second.steps=8"], conf).root != config.root


def test_runs_whose_stages_work_in_the_driver_are_not_forked(conf):
    from flows.run import prepare

    forks = Forks(possible=True)
    forks.consider(prepare([], conf).specs)
    assert not forks.load()
    assert not Forks(possible=False).load()


@pytest.mark.slow
def test_forked_arms_fail_alone_and_have_logs_and_processes_of_their_own(r1flow, tmp_path):
    done = r1flow("run", "-m", *WORKERS, "-j", "2", "second.steps=2,3", "second.fail=false,true")
    assert done.returncode == 1, done.stderr
    [sweep] = tmp_path.glob("artifacts/sweeps/*/sweep.json")
    runs = json.loads(sweep.read_text())["runs"]
    assert [run["state"] for run in runs] == ["done", "failed", "done", "failed"]
    assert "asked to fail" in (sweep.parent / "run-1.log").read_text()
    assert "asked to fail" not in (sweep.parent / "run-0.log").read_text()
    records = [json.loads(file.read_text()) for file in tmp_path.glob("artifacts/runs/*/run.json")]
    assert len({record["pid"] for record in records}) == 4


def test_an_edited_or_removed_file_is_noticed(tmp_path):
    module = tmp_path / "mine.py"
    module.write_text("x = 1")
    marks = marks_of([module, tmp_path])
    assert are_current(marks)
    module.write_text("x = 10")
    assert not are_current(marks)
    marks = marks_of([module])
    module.unlink()
    assert not are_current(marks)


def test_files_of_ours_count_one_by_one_and_installed_packages_by_their_folder():
    places = {str(path) for path in loaded_files()}
    assert str(ROOT / "flows" / "launch" / "marks.py") in places
    assert sysconfig.get_path("purelib") in places
    assert not any(path.startswith((pytest.__file__, os.__file__)) for path in places)
