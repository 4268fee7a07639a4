"""Sampling a step ahead of the update, and scoring while sampling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_rl import metrics, run, sha, weights

from components.curriculum.pass_rate import pass_rate
from components.losses import mismatch
from components.losses.policy import Algorithm
from components.models.lora import Lora
from components.rewards.mix import Mix
from components.rollout.record import read_rows
from components.runtime import Inputs, Interrupted
from components.stages.rl import rl_check
from components.stages.rl_ahead import corrected

Settings = Callable[..., dict[str, Any]]


def versions(folder: Path) -> list[int]:
    files = sorted((folder / "rollouts").iterdir())
    return [row["policy_version"] for file in files for row in read_rows(file, ["policy_version"])][:: 6 * 4]


def test_a_step_ahead_learns_from_rollouts_that_are_one_update_old(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    run(inputs, tmp_path, rl_settings(steps=12, lr=5e-3, async_level=1))
    reward = [row["reward"] for row in metrics(tmp_path)]
    assert sum(reward[-3:]) > sum(reward[:3]) + 0.3
    assert versions(tmp_path) == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_the_first_two_steps_are_sampled_from_the_weights_that_there_were(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    on, off = tmp_path / "on", tmp_path / "off"
    run(inputs, on, rl_settings(steps=3, lr=1e-3, async_level=0))
    run(inputs, off, rl_settings(steps=3, lr=1e-3, async_level=1))
    first, second = ([read_rows(d / "rollouts" / f"step-00000{n}.parquet") for n in (1, 2, 3)] for d in (on, off))
    tokens = [[[row["tokens"] for row in step] for step in steps] for steps in (first, second)]
    assert tokens[0][0] == tokens[1][0]
    assert tokens[0][1] != tokens[1][1]  # on policy the second step has seen an update
    rows = metrics(off)
    assert rows[0]["gap_max"] < 1e-4
    assert rows[1]["gap_max"] > 10 * rows[0]["gap_max"]  # measured, and corrected for


@pytest.mark.parametrize("stop_after", [1, 2, 3])
@pytest.mark.parametrize("changes", [{}, {"lora": Lora(r=2)}])
def test_a_run_that_was_stopped_draws_what_was_under_way_once_more(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, stop_after: int, changes: dict[str, Any]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def settings() -> dict[str, Any]:
        return rl_settings(checkpoint_every=2, async_level=1, curriculum=pass_rate(), lr=1e-3, **changes)

    run(inputs, whole, settings())
    asked = iter([False] * (stop_after - 1) + [True] * 2)
    with pytest.raises(Interrupted):
        run(inputs, parts, settings(), stop=lambda: next(asked))
    run(inputs, parts, settings())
    assert sha(whole) == sha(parts)
    assert metrics(whole) == metrics(parts)


def test_a_crash_between_checkpoints_loses_no_bit(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(inputs, whole, rl_settings(steps=6, checkpoint_every=2, async_level=1))
    seen: list[int] = []

    def crashes() -> bool:
        seen.append(1)
        if len(seen) == 4:
            (parts / "checkpoints").rename(parts / "kept")  # what step 4 saves is lost, as after a kill
            raise SystemExit
        return False

    settings = rl_settings(steps=6, checkpoint_every=3, async_level=1)
    with pytest.raises(SystemExit):
        run(inputs, parts, settings, stop=crashes)
    (parts / "kept").rename(parts / "checkpoints")
    run(inputs, parts, rl_settings(steps=6, checkpoint_every=2, async_level=1))
    assert sha(whole) == sha(parts)


@pytest.mark.parametrize("async_level", [0, 1])
def test_scoring_in_parts_changes_nothing(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, async_level: int
) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    run(inputs, one, rl_settings(async_level=async_level))
    run(inputs, three, rl_settings(async_level=async_level, score_parts=3))
    assert sha(one) == sha(three)
    assert metrics(one) == metrics(three)


def test_a_part_is_scored_while_the_next_is_sampled(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    sampling, begun = threading.Event(), threading.Event()

    def waits(task: Any, rollout: Any) -> float:
        begun.set()
        assert sampling.wait(60), "the second part is sampled only after the first was scored"
        return float(len(rollout.tokens))

    settings = rl_settings(steps=1, score_parts=2, reward=Mix(terms={"waits": waits}, weights={"waits": 1.0}))
    make = settings["engine"]

    def engine(decoder: Any, tokenizer: Any) -> Any:
        made = make(decoder, tokenizer)
        generate, calls = made.generate, []

        def generate_and_tell(*given: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                assert begun.wait(60)
                sampling.set()
            return generate(*given)

        made.generate = generate_and_tell
        return made

    run(inputs, tmp_path, {**settings, "engine": engine})
    assert sampling.is_set()


def test_a_reward_that_breaks_ahead_stops_the_stage_and_is_named(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    def broken(task: Any, rollout: Any) -> float:
        raise LookupError("no such key")

    before = threading.active_count()
    settings = rl_settings(reward=Mix(terms={"broken": broken}, weights={"broken": 1.0}), async_level=1)
    with pytest.raises(RuntimeError, match=r"rl step 1: the reward failed on 24 of 24(.|\n)*no such key"):
        run(inputs, tmp_path, settings)
    assert threading.active_count() < before + 7


def test_rollouts_that_are_older_are_corrected_for_unless_the_algorithm_does(grpo: Algorithm) -> None:
    assert corrected(grpo, 0) is grpo
    told = corrected(grpo, 1).mismatch
    assert isinstance(told, partial) and told.func is mismatch.tis
    own = replace(grpo, mismatch=partial(mismatch.mis, bound=3.0))
    assert corrected(own, 1) is own
    with pytest.raises(ValueError, match="async_level must be 0"):
        corrected(grpo, 2)
    assert "async_level" in rl_check({"async_level": 2, "quotas": {"reasoning": 2}}, {}, 1, {})[0]
    assert "score_parts" in rl_check({"score_parts": 0, "quotas": {"reasoning": 2}}, {}, 1, {})[0]


def test_threads_leave_the_weights_of_the_trainer_alone(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    run(inputs, tmp_path, rl_settings(steps=2, lr=1e-12, async_level=1))
    assert torch.allclose(weights(tmp_path), weights(inputs["model"].path), atol=1e-7)
