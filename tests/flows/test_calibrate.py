"""A calibration measures the real model on the real batch shapes, and every stage of a pipeline gets an estimate."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore
from flows.build import ALLOWED
from flows.calibrate import START_S, Rates, calibrate, from_rates
from flows.run import prepare
from flows.stage import StageSpec

RATES = Rates(100.0, 1000.0, 5e5, 0.5, 2.0**30, {"test": 40.0, "fresh": 50.0, "cold_start": 200.0}, (10.0, 10.0, 10.0))


def spec(kind: str, processes: int = 1, **settings: object) -> StageSpec:
    return StageSpec("x", f"components.stages.{kind}", {}, settings, launcher={"processes": processes})


def test_every_stage_of_the_smoke_pipeline_gets_an_estimate_from_seconds_of_real_work(tmp_path: Path) -> None:
    prepared = prepare(["pipeline=smoke", "orchestrator=inline"])
    rates = calibrate(prepared.specs, ArtifactStore(tmp_path), ALLOWED, seconds=0.2)
    assert rates is not None
    assert rates.parameters == pytest.approx(25_000, rel=0.1)
    assert rates.sampled_s > 0
    assert rates.trained_s > 0
    assert rates.counts["train"] > 100
    assert 15 < rates.example[1] < 120
    assert rates.memory > 2**27
    for stage in prepared.specs:
        found = from_rates(stage, rates)
        assert START_S / 2 < found.low_s <= found.s <= found.high_s
        assert found.source == "calibrated"
    assert not any(tmp_path.iterdir())


def test_a_pipeline_without_a_model_has_nothing_to_measure(tmp_path: Path) -> None:
    assert calibrate([spec("report.report")], ArtifactStore(tmp_path), ALLOWED) is None


def test_seconds_of_rl_by_hand() -> None:
    # 10 steps of 4 prompts in groups of 5, answers of 20 tokens at the middle: 200 × (20/100 + 20/1000 · 3/4)
    rl = spec("rl.rl", steps=10, quotas={"a": 4}, group_size=5, max_new_tokens=40)
    assert from_rates(rl, RATES).s == pytest.approx(START_S + 0.5 + 200 * (0.2 + 0.015))
    two = replace(rl, launcher={"processes": 2})
    assert from_rates(two, RATES).s == pytest.approx(START_S + 0.5 + 100 * (0.2 + 0.015))
    assert from_rates(two, RATES).memory == 2 * RATES.memory


def test_seconds_of_sft_and_sampling_by_hand() -> None:
    sft = spec("sft.sft", epochs=2, files={"data": ["cold_start.jsonl"]})
    assert from_rates(sft, RATES).s == pytest.approx(START_S + 0.5 + 2 * 200 * 10 / 1000)
    evaluation = spec("evaluate.evaluate", samples=3, max_new_tokens=40)
    assert from_rates(evaluation, RATES).s == pytest.approx(START_S + 0.5 + 40 * 4 * 20 / 100)
    rejection = spec("reject.reject", samples=2, prompts=30, max_new_tokens=40)
    assert from_rates(rejection, RATES).s == pytest.approx(START_S + 0.5 + 30 * 2 * 20 / 100)


def test_a_model_that_is_only_loaded_is_not_pretrained() -> None:
    loaded = spec("base_model.base_model", model={"path": "x"}, steps=2000, batch_size=20, context=64)
    assert from_rates(loaded, RATES).s == pytest.approx(START_S + 0.5)
    trained = spec("base_model.base_model", model={}, steps=10, batch_size=5, context=20)
    assert from_rates(trained, RATES).s == pytest.approx(START_S + 0.5 + 1.0)


def test_measuring_leaves_the_signals_of_the_process_as_they_are() -> None:
    code = "import signal, flows.calibrate, flows.launch.loaded; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
