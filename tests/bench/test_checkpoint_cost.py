"""What checkpoints cost the default RL stage, beside the steps between them in the same process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from components.artifacts import write_json
from components.data.builtin import Builtin
from components.models.load import save_model
from components.runtime import Inputs, Out, StageArtifact
from components.stages import rl_run as stage
from components.stages.curate import curate
from components.stages.rl import rl
from flows.build import build, stage_specs
from flows.compose import compose

STEPS, EVERY, BOUND = 40, 10, 0.03
LENGTH = 26  # tokens of a response of the trained model; one that has learned nothing would use all 80


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Data and a model of the default size; nothing trained, which costs the same."""
    root = tmp_path_factory.mktemp("inputs")
    made = {}
    for name in ("data", "model", "profile"):
        (root / name).mkdir()
        made[name] = StageArtifact(name, "k", root / name, "d")
    curate({}, Out(root / "data", "curate", seed=0), source=Builtin(scale=0.2))
    base = {spec.name: spec for spec in stage_specs(compose([]))}["base"]
    lines = (root / "data" / "pretrain.txt").read_text().splitlines()
    network, tokenizer = build(base.settings["model"]).build(lines, 0)
    save_model(network, tokenizer, root / "model" / "model")
    write_json(root / "profile" / "profile.json", {})
    return made


@pytest.mark.slow
def test_a_checkpoint_every_ten_steps_costs_less_than_three_per_cent(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    spent: dict[str, list[float]] = {"save_checkpoint": [], "write_rows": []}

    def timed(name: str, function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return function(*given, **named)
            finally:
                spent[name].append(perf_counter() - began)

        return call

    for name in spent:
        monkeypatch.setattr(stage, name, timed(name, getattr(stage, name)))
    settings = {spec.name: spec for spec in stage_specs(compose([]))}["rl_1"].settings
    settings = {**settings, "steps": STEPS, "checkpoint_every": EVERY, "max_new_tokens": LENGTH}
    rl(inputs, Out(tmp_path, "rl_1", seed=0), **build(settings))
    rows = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    steps_s = sum(row["seconds_rollout"] + row["seconds_update"] for row in rows)
    first_s = spent["write_rows"][0]  # loads pyarrow and pandas, once a stage
    figures = {
        "steps_s": steps_s,
        "checkpoint_s": sum(spent["save_checkpoint"]) / len(spent["save_checkpoint"]),
        "rollouts_s": (sum(spent["write_rows"]) - first_s) / (len(spent["write_rows"]) - 1),
        "share_of_checkpoints": sum(spent["save_checkpoint"]) / steps_s,
        "share_with_rollouts": (sum(spent["save_checkpoint"]) + sum(spent["write_rows"]) - first_s) / steps_s,
    }
    print(json.dumps(figures, indent=1))
    if folder := os.environ.get("R1FLOW_BENCH"):
        (Path(folder) / "checkpoint-cost.json").write_text(json.dumps(figures, indent=1) + "\n")
    assert len(spent["save_checkpoint"]) == STEPS // EVERY
    assert figures["share_with_rollouts"] < BOUND
