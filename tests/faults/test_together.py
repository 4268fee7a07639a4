"""Several processes on one store: each stage is built once, whoever comes later waits, says for whom and how long."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.plant import STAGES, Plant, ended, start

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]


def test_three_processes_build_a_stage_once_and_the_others_say_whom_they_waited_for(
    plant: Plant, tmp_path: Path
) -> None:
    stage = plant["base"]
    notes = [tmp_path / str(number) / "note.json" for number in range(3)]
    pids = [start(lambda: stage.build(tmp_path / "store"), note) for note in notes]
    found = [ended(pid, note).value for pid, note in zip(pids, notes, strict=True)]
    assert [one["digest"] for one in found] == [stage.reference.digest] * 3
    assert sorted(one["cached"] for one in found) == [False, True, True]
    builder = pids[[one["cached"] for one in found].index(False)]
    for one in found:
        if one["cached"]:
            said = "\n".join(one["said"])
            assert re.search(rf"waiting for pid {builder} on .*, since .*, which is working on base/", said)
            assert re.search(r"waited \d+\.\d s for pid \d+", said)
            assert "\nreused, built" in said


@pytest.mark.faults
def test_three_runs_at_once_on_an_empty_store_build_every_stage_once(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "flows.cli", "run", "pipeline=smoke", f"artifacts={tmp_path}/artifacts"),
        *("orchestrator=inline", "tracking=none", "launcher.processes=1"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    outputs = [tmp_path / f"{number}.txt" for number in range(3)]
    runs = []
    for output in outputs:
        with output.open("w") as file:
            runs.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=file))
    assert [run.wait(600) for run in runs] == [0, 0, 0], outputs[0].read_text()
    records = [json.loads(file.read_text()) for file in (tmp_path / "artifacts" / "runs").glob("*/run.json")]
    states = Counter((name, stage["state"]) for record in records for name, stage in record["stages"].items())
    assert {name: states[name, "done"] for name in STAGES} == dict.fromkeys(STAGES, 1)
    assert {name: states[name, "reused"] for name in STAGES} == dict.fromkeys(STAGES, 2)
    said = "".join(output.read_text() for output in outputs)
    assert re.search(r"waiting for pid \d+ on \S+, since [\d :-]+, which is working on \w+/", said)
    assert re.search(r"waited \d+\.\d s for pid \d+", said)


def test_a_clock_set_back_or_forward_makes_nothing_stale(plant: Plant, tmp_path: Path) -> None:
    """Keys and verification use no times: neither the clock's nor those of files."""
    stage = plant["curate"]
    stage.recovers(tmp_path)
    now = time.time()
    for then in (0.0, now - 3e7, now + 3e8):
        for file in tmp_path.rglob("*"):
            os.utime(file, (then, then))
        assert stage.again(tmp_path).cached
