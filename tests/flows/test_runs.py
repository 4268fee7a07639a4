"""Run records."""

import errno
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows import runs
from flows.build import stage_specs
from flows.cli import main
from flows.compose import compose
from flows.errors import BadInput
from flows.run import run
from flows.runs import RunRecord, find_run, list_runs, new_directory, stage_directories


@pytest.fixture
def start(tmp_path, conf):
    config = compose([], conf)
    specs = stage_specs(config)
    return lambda: RunRecord.start(tmp_path, config, specs)


def test_a_record_follows_the_drivers_events(start, tmp_path):
    record = start()
    record({"event": "stage", "stage": "first", "state": "building", "why": "never built"})
    record({"event": "say", "text": "Prefect shows …", "address": {"Prefect": "http://127.0.0.1:1"}})
    [seen] = list_runs(tmp_path)
    assert (seen["state"], seen["stages"]["first"]["state"]) == ("running", "building")
    record({"event": "stage", "stage": "first", "state": "done", "artifact": {"key": "k", "path": "/p", "digest": "d"}})
    record.finish("done", 0)
    [seen] = list_runs(tmp_path)
    assert (seen["state"], seen["exit"]) == ("done", 0)
    assert (seen["stages"]["first"]["key"], seen["stages"]["first"]["path"]) == ("k", "/p")
    assert seen["addresses"] == {"Prefect": "http://127.0.0.1:1"}


def test_a_reader_never_sees_half_a_record(start, tmp_path):
    record = start()
    file = record.directory / "run.json"
    with ThreadPoolExecutor(2) as pool:
        event = {"event": "stage", "stage": "first", "state": "building", "why": "x" * 10_000}
        writing = pool.submit(lambda: [record(event) for _ in range(300)])
        while not writing.done():
            json.loads(file.read_text())
    record.finish("done", 0)


def test_a_disk_that_is_full_for_a_while_costs_the_record_nothing_that_comes_later(start, tmp_path, monkeypatch):
    record = start()
    with monkeypatch.context() as full:
        full.setattr(runs.os, "replace", no_space)
        record({"event": "stage", "stage": "first", "state": "building", "why": "never built"})
        assert "run.json" in record.problem and "No space left on device" in record.problem
        assert list_runs(tmp_path)[0]["stages"]["first"]["state"] == "waiting"
        assert not list(tmp_path.rglob("*.tmp"))
    assert record.finish("done", 0) == ""
    assert list_runs(tmp_path)[0]["stages"]["first"]["state"] == "building"


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_whose_record_cannot_be_finished_says_so_and_gives_1(tmp_path, conf, monkeypatch, capsys):
    real, ends = runs.write_json, []

    def full_at_the_end(file, content):
        ends.append(content["state"])
        if content["state"] != "running":
            no_space()
        real(file, content)

    monkeypatch.setattr(runs, "write_json", full_at_the_end)
    assert run([f"artifacts={tmp_path}"], conf, quiet=True) == 1
    assert ends[-1] == "done"
    assert "No space left on device. So the record of this run says less" in capsys.readouterr().err
    assert list_runs(tmp_path)[0]["state"] == "killed"


def test_two_runs_of_one_second_have_different_names(tmp_path):
    assert len({new_directory(tmp_path) for _ in range(21)}) == 21


def test_a_run_is_found_by_an_unambiguous_part_of_its_name(start, tmp_path):
    first, second = start(), start()
    first.finish("done", 0)
    second.finish("done", 0)
    assert find_run(tmp_path, first.id)["id"] == first.id
    assert find_run(tmp_path, first.id.rpartition("-")[2])["id"] == first.id
    with pytest.raises(BadInput, match="fits 2 runs"):
        find_run(tmp_path, first.id[:8])
    with pytest.raises(BadInput, match="no such run"):
        find_run(tmp_path, "zzz")


def test_a_record_of_another_schema_or_half_written_is_left_out_and_named(start, tmp_path, capsys):
    start().finish("done", 0)
    for name, text in (("a", '{"schema": 99, "id": "a"}'), ("b", "{")):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(text)
    assert len(list_runs(tmp_path)) == len(list_runs(tmp_path)) == 1
    assert capsys.readouterr().err.count("is left out") == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([], "but list"),
        (None, "but NoneType"),
        ("s", "but str"),
        ({"id": "../x"}, "id is '../x'"),
        ({"pipeline": None}, "pipeline is None"),
        ({"stages": None}, "stages is None"),
        ({"state": 3}, "state is 3"),
        ({"started": "yesterday"}, "started is 'yesterday'"),
        ({"started": "2026-01-01T00:00:00"}, "started is"),  # which can't be compared with one that names its zone
        ({"overrides": "x"}, "overrides is 'x'"),
        ({"stages": []}, "stages is []"),
        ({"stages": {"first": 1}}, "stage first is 1"),
        ({"stages": {"first": {"state": "done", "key": 7}}}, "key of stage first is 7"),
        ({"stages": {"first": {"state": "done", "inputs": []}}}, "inputs of stage first is []"),
    ],
)
def test_json_that_is_no_record_is_named_and_every_command_goes_on_without_it(start, tmp_path, capsys, changes, named):
    record = start()
    record.finish("done", 0)
    bad = tmp_path / "runs" / "bad" / "run.json"
    bad.parent.mkdir()
    bad.write_text(json.dumps({**record.content, "id": "bad", **changes} if isinstance(changes, dict) else changes))
    assert [seen["id"] for seen in list_runs(tmp_path)] == [record.id]
    assert named in capsys.readouterr().err
    for arguments, code in ((["status"], 0), (["cache", "ls"], 0), (["cache", "gc"], 2), (["report"], 2)):
        assert main([*arguments, "--artifacts", str(tmp_path)]) == code
    assert f"{bad}: can't be read, so what this run needs is not known. Fix:" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["pipeline", "started", "ended", "overrides", "addresses"])
def test_a_record_that_lacks_what_is_only_shown_counts(start, tmp_path, missing):
    record = start()
    record.finish("done", 0)
    file = record.directory / "run.json"
    file.write_text(json.dumps({k: v for k, v in record.content.items() if k != missing}))
    for arguments in (["status"], ["cache", "ls"], ["cache", "gc", "--older-than", "1d"]):
        assert main([*arguments, "--artifacts", str(tmp_path)]) == 0
    assert [seen["id"] for seen in list_runs(tmp_path)] == [record.id]


def test_a_folder_that_was_copied_shows_its_own_artifacts_and_not_those_it_was_copied_from(tmp_path, conf, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    assert run([f"artifacts={old}"], conf, quiet=True) == 0
    shutil.copytree(old, new)
    capsys.readouterr()
    assert main(["report", "--artifacts", str(new)]) == 0
    assert f"Report: {new}/cache/report/" in capsys.readouterr().out
    shutil.rmtree(old)
    assert all(Path(stage["path"]).is_dir() for stage in list_runs(new)[0]["stages"].values())
    assert next(stage_directories(new, "first"))[1].parent == new / "cache" / "first"
