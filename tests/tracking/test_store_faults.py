"""A store that is no database, or an address that is none: said in a line, and nothing of a run is lost."""

from __future__ import annotations

import json
import logging
import sqlite3
from pathlib import Path

import pytest

from components.tracking.faults import set_aside_if_broken, what_is_wrong
from components.tracking.mlflow import MlflowTracker, Recorder, record_pending

START = {"event": "run", "state": "started", "pipeline": "r1", "time": 1}


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def a_database(file: Path, rows: int = 5000) -> Path:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE t (x TEXT)")
        connection.executemany("INSERT INTO t VALUES (?)", [(f"row {i}" * 5,) for i in range(rows)])
    connection.close()
    return file


def test_a_database_is_left_alone_also_an_empty_and_a_busy_one(tmp_path: Path):
    whole = a_database(tmp_path / "a.db")
    empty = tmp_path / "b.db"
    empty.write_bytes(b"")
    assert (what_is_wrong(whole), what_is_wrong(empty)) == ("", "")
    busy = sqlite3.connect(whole, isolation_level=None)
    busy.execute("BEGIN EXCLUSIVE")
    with pytest.MonkeyPatch.context() as quick:
        real = sqlite3.connect
        quick.setattr(sqlite3, "connect", lambda file, timeout: real(file, timeout=0.01))
        assert set_aside_if_broken(whole) is None
    busy.close()


@pytest.mark.parametrize("how", ["garbage", "cut", "scribbled"])
def test_a_file_that_is_no_database_is_set_aside_under_a_free_name_with_its_companions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
):
    file = a_database(tmp_path / "mlflow.db")
    data = bytearray(file.read_bytes())
    if how == "garbage":
        data = bytearray(b"hello " * 2000)
    elif how == "cut":
        del data[len(data) // 2 :]
    else:
        data[4096:8192] = b"\xff" * 4096
    file.write_bytes(data)
    (tmp_path / "mlflow.damaged-1.db").write_text("an earlier one")
    (tmp_path / "mlflow.db-journal").write_text("")
    with caplog.at_level(logging.WARNING):
        assert set_aside_if_broken(file) == tmp_path / "mlflow.damaged-2.db"
    assert (tmp_path / "mlflow.damaged-2.db").read_bytes() == data
    assert not list(tmp_path.glob("mlflow.db*"))
    assert "It is now mlflow.damaged-2.db; a new store is begun" in caplog.text


def test_what_is_pending_goes_into_the_new_store_also_of_a_run_that_the_old_one_knew(tmp_path: Path):
    home = tmp_path / "mlflow"
    start, end = {**START, "run": "r-1"}, {"event": "run", "state": "done", "time": 3}
    memo = {"parent": "a" * 32, "children": {"curate": "b" * 32, "rl_1": "c" * 32}, "start": start}
    rows = [memo, {"event": "stage", "stage": "rl_1", "state": "done", "time": 2}, end]
    (home / "pending").mkdir(parents=True)
    (home / "pending" / "r-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "mlflow.db").write_bytes(b"not a database, but some text of more than sixteen bytes")
    assert record_pending(home) == 1
    client = Recorder(home, None, {})._store
    experiment = client.get_experiment_by_name("r1flow-r1")
    assert {run.info.run_name for run in client.search_runs([experiment.experiment_id])} == {"r-1", "rl_1"}
    assert (home / "mlflow.damaged-1.db").read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("uri", ["nonsense://x", "nonsense://user:secret-word@x"])
def test_an_address_of_no_known_kind_is_named_with_its_variable_in_one_line(tmp_path, monkeypatch, caplog, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = MlflowTracker(directory=str(tmp_path / "mlflow"), flush_every_s=0.1)
    for event in ({**START, "run": "r-2"}, {"event": "stage", "stage": "rl_1", "state": "building"}):
        tracker(event)
    tracker.close()
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("MLflow")]
    assert line.startswith("MLflow: MLFLOW_TRACKING_URI=nonsense://")
    assert "Fix: set http://HOST:PORT or sqlite:////PATH, or unset it to record below the artifacts" in line
    assert "secret-word" not in line and "\n" not in line
