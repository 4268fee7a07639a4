"""Run records."""

import errno
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from flows import runs
from flows.build import stage_specs
from flows.compose import compose
from flows.errors import BadInput
from flows.run import run
from flows.runs import RunRecord, find_run, list_runs, new_directory


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
    assert len(list_runs(tmp_path)) == 1
    assert capsys.readouterr().err.count("is left out") == 2
