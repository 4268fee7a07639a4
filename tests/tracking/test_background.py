import json
import threading
import time

import pytest

from components.tracking.background import Background, record_pending
from components.tracking.events import numbers
from components.tracking.names import metric_name, param_value

START = {"event": "run", "state": "started", "run": "r-1"}
END = {"event": "run", "state": "done"}
REUSED = {"event": "stage", "stage": "a", "state": "reused"}
BUILDING = {"event": "stage", "stage": "b", "state": "building"}


class Store:
    """Keeps what it is given; fails while ``down``."""

    def __init__(self):
        self.down, self.events, self.made = False, [], 0

    def make(self, memo):
        self.made += 1
        return Kept(self, memo)


class Kept:
    def __init__(self, store, memo):
        self.store, self.memo, self.buffer = store, memo, []

    def record(self, event):
        self.buffer.append(event)
        self.memo["seen"] = self.memo.get("seen", 0) + 1

    def flush(self):
        if self.store.down:
            raise OSError("no such host")
        self.store.events += [event for event in self.buffer if event not in self.store.events]
        self.buffer.clear()


def tracker(store, tmp_path, **settings):
    return Background("Store", store.make, tmp_path / "pending", flush_every_s=0.05, patience_s=5, **settings)


def test_a_run_that_builds_nothing_starts_nothing(tmp_path):
    store = Store()
    listen = tracker(store, tmp_path)
    for event in (START, REUSED, END):
        listen(event)
    assert store.made == 0
    assert record_pending(store.make, tmp_path / "pending") == 1
    assert [event["event"] for event in store.events] == ["run", "stage", "run"]
    assert list((tmp_path / "pending").iterdir()) == []


def test_the_next_run_that_builds_records_what_waited(tmp_path):
    store = Store()
    for events in ((START, REUSED, END), ({**START, "run": "r-2"}, BUILDING, {**END, "run": "r-2"})):
        listen = tracker(store, tmp_path)
        for event in events:
            listen(event)
    assert [event.get("run") for event in store.events if event.get("state") == "started"] == ["r-1", "r-2"]
    assert len(store.events) == 6


def test_an_outage_is_told_once_and_its_events_are_kept(tmp_path, caplog):
    store = Store()
    listen = tracker(store, tmp_path)
    listen(START)
    listen(BUILDING)
    deadline = time.monotonic() + 5
    while not store.events and time.monotonic() < deadline:
        time.sleep(0.01)
    store.down = True
    for step in range(5):
        listen({"event": "metrics", "stage": "b", "step": step, "values": {"loss": 1.0}})
        time.sleep(0.03)
    listen(END)
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "no such host" in caplog.text
    assert len(caplog.records) == 1
    memo, *kept = [json.loads(line) for line in (tmp_path / "pending" / "r-1.jsonl").read_text().splitlines()]
    assert memo["seen"] >= 2
    store.down = False
    record_pending(store.make, tmp_path / "pending")
    assert [event["step"] for event in store.events if event["event"] == "metrics"] == list(range(5))
    assert store.events[-1]["state"] == "done"
    assert len(kept) >= 1


def test_what_cannot_be_recorded_stays(tmp_path):
    store = Store()
    listen = tracker(store, tmp_path)
    for event in (START, REUSED, END):
        listen(event)
    store.down = True
    with pytest.raises(OSError, match="no such host"):
        record_pending(store.make, tmp_path / "pending")
    assert [file.name for file in (tmp_path / "pending").iterdir()] == ["r-1.jsonl"]


def test_a_slow_store_does_not_hold_the_run(tmp_path):
    let_go = threading.Event()

    class Slow(Kept):
        def flush(self):
            let_go.wait(120)
            super().flush()

    store = Store()
    listen = Background("Store", lambda memo: Slow(store, memo), tmp_path, flush_every_s=0.01, patience_s=0.2)
    began = time.monotonic()
    listen(START)
    listen(BUILDING)
    for step in range(1000):
        listen({"event": "metrics", "stage": "b", "step": step, "values": {}})
    listen(END)
    assert time.monotonic() - began < 60  # the store takes two minutes
    let_go.set()
    assert (tmp_path / "r-1.jsonl").exists()


def test_names_are_brought_to_what_trackers_take():
    assert metric_name("pass@4") == "pass_at_4"
    assert metric_name("reward/../a b/ü?") == "a b/ü_"
    assert metric_name("/x//y/") == "x/y"
    assert metric_name("..") == "unnamed"
    assert len(metric_name("a" * 1000)) == 250


def test_secrets_stay_out_of_settings():
    assert param_value("model.hf_token", "abc") == "***"
    assert param_value("pad_token", "<pad>") == "<pad>"
    assert "hunter2" not in param_value("db", "postgres://me:hunter2@host/db")
    assert "hf_abcdefghijk" not in param_value("args", "--token=hf_abcdefghijk")
    assert len(param_value("x", "y" * 9000)) == 500


def test_only_finite_numbers_are_metrics():
    metrics = {"a": 1, "b": float("nan"), "c": "text", "d": {"value": 0.5, "low": 0.4}, "e": {"f": True}}
    assert numbers(metrics) == {"a": 1.0, "d": 0.5, "e.f": 1.0}


def waiting(folder, name, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_what_a_process_was_killed_over_while_it_recorded_it_is_recorded_by_the_next(tmp_path):
    store, pending = Store(), tmp_path / "pending"
    waiting(pending, "r-1.4194304", [{}, START, END])  # claimed by a process number that no system gives
    assert record_pending(store.make, pending) == 1
    assert store.events == [START, END]
    assert list(pending.iterdir()) == []


def test_what_is_known_of_the_store_is_kept_when_recording_fails_again(tmp_path):
    store, pending = Store(), tmp_path / "pending"
    waiting(pending, "r-1.jsonl", [{}, START, END])
    store.down = True
    with pytest.raises(OSError, match="no such host"):
        record_pending(store.make, pending)
    memo, *events = [json.loads(line) for line in (pending / "r-1.jsonl").read_text().splitlines()]
    assert (memo, events) == ({"seen": 2}, [START, END])  # of a run that was made: its id, so that it is made once


def test_a_damaged_file_is_set_aside_and_said_and_the_others_are_recorded(tmp_path, caplog):
    store, pending = Store(), tmp_path / "pending"
    waiting(pending, "r-2.jsonl", [{}, START, END])
    (pending / "r-1.jsonl").write_text('{"seen"')
    assert record_pending(store.make, pending) == 1
    assert [file.name for file in pending.iterdir()] == ["r-1.damaged"]
    assert "r-1 can't be read" in caplog.text
