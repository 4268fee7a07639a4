"""``r1flow run --json``: whole lines, stable fields, nothing else on standard output."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

from components.tracking.json_lines import JsonLines

ARTIFACT = {"key": "k1", "path": Path("/a/b"), "digest": "d"}
RUN = [
    {
        "event": "run",
        "state": "started",
        "run": "r-1",
        "pipeline": "r1",
        "seed": 3,
        "stages": ["base"],
        "params": {"x": 1},
    },
    {"event": "stage", "stage": "base", "state": "waiting"},
    {"event": "stage", "stage": "base", "state": "building", "why": "building: never built"},
    {"event": "progress", "stage": "base", "done": 1, "total": 10, "shown": {"loss": 2.5}},
    {"event": "metrics", "stage": "base", "step": 1, "values": {"loss": 2.5}},
    {"event": "say", "stage": None, "text": "ä line\nof two", "level": "warning"},
    {"event": "finding", "stage": "rl", "step": 4, "name": "gate", "severity": "warning", "text": "t", "finding": {}},
    {"event": "gate", "stage": "rl", "mode": "warn", "passed": False, "text": "t", "verdict": {"decision": "paid"}},
    {"event": "stage", "stage": "base", "state": "done", "wall_s": 2.0, "artifact": ARTIFACT, "metrics": {"loss": 1.5}},
    {"event": "unknown"},
    {"event": "run", "state": "done", "wall_s": 3.0, "exit_code": 0},
]


def told(events: list[dict]) -> list[dict]:
    out = io.StringIO()
    view = JsonLines(out)
    for event in events:
        view(event)
    view.close()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_each_event_is_one_object_with_the_documented_fields():
    lines = told(RUN)
    assert [(line["event"], line.get("state", "")) for line in lines] == [
        ("run", "started"),
        ("stage", "running"),
        ("progress", ""),
        ("metrics", ""),
        ("say", ""),
        ("finding", ""),
        ("gate", ""),
        ("stage", "done"),
        ("run", "done"),
    ]
    assert all(line.pop("time") > 1.7e9 for line in lines)
    start = {"event": "run", "state": "started", "run": "r-1", "pipeline": "r1", "seed": 3, "directory": None}
    assert lines[0] == {**start, "stages": ["base"]}
    assert lines[2] == {"event": "progress", "stage": "base", "done": 1, "total": 10, "shown": {"loss": 2.5}}
    assert lines[4] == {"event": "say", "stage": None, "level": "warning", "text": "ä line\nof two"}
    assert lines[6]["verdict"] == {"decision": "paid"}
    done = {"event": "stage", "stage": "base", "state": "done", "why": "", "wall_s": 2.0}
    assert lines[7] == {**done, "key": "k1", "path": "/a/b", "metrics": {"loss": 1.5}}
    assert lines[8] == {"event": "run", "state": "done", "exit_code": 0, "wall_s": 3.0}


def test_the_last_line_says_how_it_ended_and_where_everything_lies(tmp_path: Path):
    (tmp_path / "report.html").write_text("<html>")
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}
    summary = {"stages": [{"name": "rl_1", "metrics": {"pass@1": estimate}}]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    stages = {
        "rl_1": {"state": "done", "wall_s": 2.0, "key": "k", "path": "/nowhere", "settings": {}},
        "report": {"state": "done", "wall_s": 1.0, "key": "r", "path": str(tmp_path)},
        "last": {"state": "failed", "why": "no"},
    }
    out = io.StringIO()
    JsonLines(out).result({"id": "r-1", "stages": stages}, "failed", 1)
    line = json.loads(out.getvalue())
    assert (line["event"], line["run"], line["state"], line["exit_code"]) == ("result", "r-1", "failed", 1)
    assert line["report"] == str(tmp_path / "report.html")
    assert line["evaluations"] == {"rl_1": {"pass@1": 0.5}}
    assert line["stages"]["rl_1"] == {"state": "done", "wall_s": 2.0, "key": "k", "path": "/nowhere"}
    assert line["stages"]["last"] == {"state": "failed", "wall_s": None, "key": None, "path": None}


def test_lines_of_several_threads_do_not_mix():
    out = io.StringIO()
    view = JsonLines(out)

    def many(name: str) -> None:
        for step in range(200):
            view({"event": "metrics", "stage": name, "step": step, "values": {"x": "y" * 200}})

    threads = [threading.Thread(target=many, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 800
