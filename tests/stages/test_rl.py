from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from components.rewards.mix import Mix
from components.rollout.record import read_rows
from components.runtime import Inputs, Interrupted, Out
from components.stages.rl import rl

Settings = Callable[..., dict[str, Any]]


def sha(folder: Path) -> dict[str, str]:
    """Hashes of what an RL stage leaves, timings and checkpoints aside."""
    files = [
        p for p in folder.rglob("*") if p.is_file() and not {"logs", "checkpoints"} & set(p.relative_to(folder).parts)
    ]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(files)}


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in sorted(load_file(folder / "model" / "model.safetensors").items())])


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("seconds_")} for row in rows]


def run(
    inputs: Inputs, folder: Path, settings: dict[str, Any], stop: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    return rl(inputs, Out(folder, "rl", seed=3, stop_requested=stop), **settings)


def test_rl_moves_the_weights_and_raises_the_reward(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    run(inputs, tmp_path, rl_settings(steps=12, lr=5e-3))
    reward = [row["reward"] for row in metrics(tmp_path)]
    assert sum(reward[-3:]) > sum(reward[:3]) + 0.3
    assert not torch.equal(weights(tmp_path), weights(inputs["model"].path))


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_stopped_run_continues_bit_for_bit(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, stop_after: int
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = rl_settings(checkpoint_every=2)
    run(inputs, whole, settings)
    asked = iter([False] * (stop_after - 1) + [True] * 2)
    with pytest.raises(Interrupted):
        run(inputs, parts, rl_settings(checkpoint_every=2), stop=lambda: next(asked))
    run(inputs, parts, rl_settings(checkpoint_every=2))
    assert sha(whole) == sha(parts)
    assert metrics(whole) == metrics(parts)


def test_the_best_weights_are_published_if_asked_for_wherever_a_stop_fell(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    settings = rl_settings(steps=6, checkpoint_every=3, lr=0.02, best_window=2)
    falling = {"terms": settings["reward"].terms, "weights": settings["reward"].weights}
    settings["reward"] = Mix(**falling, ramps={"digits": [[0.5, 1.0], [0.6, 0.1]]})
    for name in ("last", "best", "parts"):
        stops = iter([False] * 4 + [True] * 2) if name == "parts" else iter([False] * 99)
        how = {**settings, "publish": "last" if name == "last" else "best"}
        if name == "parts":
            how["checkpoint_every"] = 1
        with suppress(Interrupted):
            run(inputs, tmp_path / name, how, stop=partial(next, stops))
    kept = load_file(tmp_path / "parts" / "checkpoints" / "step-00000004" / "model.safetensors")
    run(inputs, tmp_path / "parts", {**settings, "publish": "best"})
    assert sha(tmp_path / "parts") == sha(tmp_path / "best") != sha(tmp_path / "last")
    reward = [row["reward"] for row in metrics(tmp_path / "best")]
    means = [sum(reward[first : first + 2]) / 2 for first in (0, 2, 4)]
    best = 2 * (means.index(max(means)) + 1)
    assert best == 4
    published = load_file(tmp_path / "best" / "model" / "model.safetensors")
    assert all(torch.equal(published[name], kept[name]) for name in published)


def test_a_finished_stage_that_is_run_again_trains_nothing(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    run(inputs, tmp_path, rl_settings())
    before = sha(tmp_path)
    run(inputs, tmp_path, rl_settings())
    assert sha(tmp_path) == before


def test_micro_batch_size_changes_rounding_only(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    run(inputs, one, rl_settings(steps=2, micro_batch_tokens=100_000))
    run(inputs, many, rl_settings(steps=2, micro_batch_tokens=1))
    moved = (weights(one) - weights(inputs["model"].path)).abs().max()
    assert (weights(one) - weights(many)).abs().max() < 1e-3 * moved


def test_rollouts_are_kept_with_tokens_terms_and_version(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    run(inputs, tmp_path, rl_settings(checkpoint_every=2))
    files = sorted(file.name for file in (tmp_path / "rollouts").iterdir())
    rows = [row for name in files for row in read_rows(tmp_path / "rollouts" / name)]
    assert files == [f"step-{step:06d}.parquet" for step in (1, 2, 3, 4)]
    assert len(rows) == 4 * 6 * 4
    assert {row["policy_version"] for row in rows} == {0, 1, 2, 3}
    assert all(len(row["tokens"]) == len(row["action_mask"]) == row["length"] for row in rows)
    row = rows[0]
    expected = row["term.accuracy"] + row["term.digits"] + 0.1 * row["term.format"] + 0.2 * row["term.language"]
    assert row["total"] == pytest.approx(expected)


def test_a_reward_that_breaks_stops_the_stage_and_is_named(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    from components.rewards.mix import Mix

    def broken(task: Any, rollout: Any) -> float:
        raise LookupError("no such key")

    with pytest.raises(RuntimeError, match=r"rl step 1: the reward failed on 24 of 24(.|\n)*broken(.|\n)*no such key"):
        run(inputs, tmp_path, rl_settings(reward=Mix(terms={"broken": broken}, weights={"broken": 1.0})))


def test_a_few_failed_rewards_are_left_out_and_counted(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    from components.rewards.mix import Mix

    def moody(task: Any, rollout: Any) -> float:
        return float("nan") if rollout.tokens[0] % 7 == 0 else float(len(set(rollout.tokens)))

    reward = Mix(terms={"moody": moody}, weights={"moody": 1.0})
    run(inputs, tmp_path, rl_settings(reward=reward, max_failed=1.0, steps=2))
    assert any(row["failed"] > 0 for row in metrics(tmp_path))
    assert weights(tmp_path).isfinite().all()


def test_an_unknown_quota_is_named_with_what_there_is(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"quotas\.poems: no such tasks.*unsafe"):
        run(inputs, tmp_path, rl_settings(quotas={"poems": 4}))


def test_dynamic_sampling_is_bounded_and_says_what_it_trained_on(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:

    said: list[str] = []
    settings = rl_settings(steps=1)
    settings["algorithm"] = replace(settings["algorithm"], dynamic_sampling=2)
    out = Out(tmp_path, "rl", seed=0, emit=lambda event: said.append(event.get("text", "")))
    rl(inputs, out, **settings)  # an untrained model solves nothing: no group has 0 < accuracy < 1
    assert "step 1: 0 of 6 groups have signal after 3 rounds" in said
    assert torch.equal(weights(tmp_path), weights(inputs["model"].path))


def test_the_stages_kl_coefficient_is_for_algorithms_that_have_the_term(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    run(inputs, tmp_path, rl_settings(beta=0.02, steps=1))
    assert "kl_loss" not in metrics(tmp_path)[0]


def test_a_rollout_that_its_environment_broke_is_left_out_and_counted_not_scored_as_wrong(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:

    from components.rollout.torch_engine import TorchEngine

    class Breaks(TorchEngine):
        """Every first sample of a prompt comes back as if its environment had raised."""

        def generate(self, prompts: Any, sampling: Any, environment: Any = None) -> Any:
            drawn = super().generate(prompts, sampling, environment)
            return [[replace(first, finish="failed"), *rest] for first, *rest in drawn]

    run(inputs, tmp_path, rl_settings(engine=Breaks, steps=1, max_failed=1.0))
    assert metrics(tmp_path)[0]["failed"] == pytest.approx(1 / 4)
    with pytest.raises(RuntimeError, match="the environment failed"):
        run(inputs, tmp_path / "strict", rl_settings(engine=Breaks, steps=1))
