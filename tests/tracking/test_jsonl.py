import json

from components.tracking.jsonl import EventLog


def test_events_are_lines_with_their_time_and_progress_is_left_out(tmp_path):
    log = EventLog(tmp_path / "run" / "events.jsonl")
    log({"event": "stage", "stage": "a", "state": "done", "path": tmp_path})
    log({"event": "progress", "stage": "a", "done": 1, "total": 2})
    log({"event": "say", "stage": "a", "text": "größer\nals"})
    rows = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["event"] for row in rows] == ["stage", "say"]
    assert rows[0]["path"] == str(tmp_path)
    assert rows[1]["text"] == "größer\nals"
    assert rows[0]["time"] <= rows[1]["time"]
