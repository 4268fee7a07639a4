"""What recording a step's metrics in MLflow costs, in CPU time beside that of a training step of the tiny model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from components.tracking.mlflow import Recorder

pytestmark = pytest.mark.slow
STEPS, METRICS = 400, 40  # an RL stage logs about 30 figures a step
EVERY = 10  # steps between two writes: ten seconds of the default's RL stages are about as many
STEP_CPU_S = 1.2  # of a step of rl_1 with the default model, both processes together


def test_metrics_cost_less_than_two_per_cent_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    recorder = Recorder(tmp_path / "mlflow", None, {})
    recorder.record({"event": "run", "state": "started", "run": "r", "pipeline": "bench", "time": 1})
    recorder.record({"event": "stage", "stage": "rl_1", "state": "building", "time": 1})
    recorder.flush()
    begin = time.process_time()
    for step in range(STEPS):
        values = {f"m{i}": step / (i + 1) for i in range(METRICS)}
        recorder.record({"event": "metrics", "stage": "rl_1", "step": step, "values": values, "time": 1000 * step})
        if step % EVERY == EVERY - 1:
            recorder.flush()
    recorder.flush()
    per_step = (time.process_time() - begin) / STEPS
    share = per_step / STEP_CPU_S
    print(json.dumps({"cpu_ms_per_step": round(1000 * per_step, 2), "metrics": METRICS, "share": round(share, 4)}))
    assert share < 0.02
