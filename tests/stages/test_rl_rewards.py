"""Rewards inside the RL stage: what breaks, what is paid for, and what may not change a score."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from components.curriculum.uniform import uniform
from components.rewards.format import think_then_answer
from components.rewards.isolated import Isolated
from components.rewards.mix import Mix
from components.rollout.record import read_rows
from components.rollout.torch_engine import TorchEngine
from components.runtime import Inputs, Interrupted, Out
from components.stages.rl import rl
from tests.rewards.judging import Server, server  # noqa: F401 – a fixture
from tests.stages.test_rl import metrics, run, sha, weights

Settings = Callable[..., dict[str, Any]]

USER = '''
import random, time
from components.types import Score

def first(rollout): return rollout.tokens[0] % 4 == 0

def raises(task, rollout): return len(rollout.tokens) / 10 if not first(rollout) else 1 / 0
def hangs(task, rollout):
    if first(rollout): time.sleep(60)
    return len(set(rollout.tokens)) / 10
def nan(task, rollout): return float("nan") if first(rollout) else len(set(rollout.tokens)) / 10
def inf(task, rollout): return float("-inf") if first(rollout) else len(set(rollout.tokens)) / 10
def text(task, rollout): return "0.5" if first(rollout) else len(set(rollout.tokens)) / 10
def listed(task, rollout): return [0.5] * 24 if first(rollout) else len(set(rollout.tokens)) / 10
class Short:
    def batch(self, pairs): return [0.5] * (len(pairs) - 1)
def unsure(task, rollout):
    return Score(0.0, {}, "abstained", "cannot tell") if first(rollout) else len(set(rollout.tokens)) / 10

def varied(task, rollout):
    """Draws, works, and names its parts."""
    time.sleep(0.01 * (rollout.tokens[0] % 3))
    distinct = len(set(rollout.tokens)) / 10
    return Score(distinct + random.random() / 10, {"distinct": distinct, "tokens": float(len(rollout.tokens))})
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine.py").write_text(USER)
    monkeypatch.syspath_prepend(str(folder))
    import mine  # type: ignore[import-not-found]

    yield mine
    del sys.modules["mine"]


def alone(term: Any, **figures: Any) -> Mix:
    return Mix(terms={"mine": term}, weights={"mine": 1.0}, **{"seconds": 0.5, "retries": 0, "workers": 1, **figures})


BROKEN = {
    "raises": "ZeroDivisionError: division by zero",
    "hangs": "ran over its deadline of 0.5 s and was killed",
    "nan": "returned nan, not a finite number",
    "inf": "returned -inf, not a finite number",
    "text": "returned '0.5', not a finite number",
    "listed": "returned [0.5, 0.5,",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_reward_that_breaks_stops_the_run_or_not_as_the_budget_says_and_is_named_with_the_sample(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, mine: ModuleType, name: str
) -> None:
    said: list[str] = []
    folder = tmp_path / "goes_on"
    folder.mkdir()
    settings = {"reward": alone(getattr(mine, name)), "steps": 1, "quotas": {"reasoning": 3}}
    out = Out(folder, "rl", seed=3, emit=lambda event: said.append(event.get("text", "")))
    rl(inputs, out, **rl_settings(max_failed=1.0, **settings))
    rows = read_rows(folder / "rollouts" / "step-000001.parquet")
    broken = [row["tokens"][0] % 4 == 0 for row in rows]
    assert 0 < sum(broken) < len(broken)
    assert [row["outcome"] for row in rows] == ["failed" if b else "scored" for b in broken]
    assert metrics(folder)[0]["failed"] == pytest.approx(sum(broken) / len(broken))
    assert weights(folder).isfinite().all()
    [told] = [text for text in said if "the reward failed on" in text]
    assert f"step 1: the reward failed on {sum(broken)} of 12 rollouts; they are left out. First: task " in told
    at = broken.index(True)
    sample = f"task {rows[at]['task_id']}, rollout {at % 4 + 1} of 4: mine (mine.{name})"
    assert sample in told
    assert "\n" not in told
    with pytest.raises(RuntimeError, match=r"^rl step 1: the reward failed on \d+ of 12 rollouts, more than") as stop:
        run(inputs, tmp_path / "stops", rl_settings(max_failed=0.05, **settings))
    assert sample in str(stop.value)
    assert BROKEN[name] in str(stop.value)


def test_a_batch_of_the_wrong_length_fails_whole(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, mine: ModuleType
) -> None:
    settings = rl_settings(reward=alone(mine.Short()), steps=1, quotas={"reasoning": 2})
    with pytest.raises(RuntimeError, match=r"rollout 1 of 4: mine \(mine.Short\) returned 7 values for 8 rollouts"):
        run(inputs, tmp_path, settings)


def test_what_abstains_is_left_out_and_is_no_failure(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, mine: ModuleType
) -> None:
    run(inputs, tmp_path, rl_settings(reward=alone(mine.unsure), steps=1, max_failed=0.0))
    [row] = metrics(tmp_path)
    assert row["failed"] == 0
    assert 0 < row["abstained"] < 1


def test_every_term_is_logged_raw_and_weighted_and_no_name_hides_another(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, mine: ModuleType
) -> None:
    terms = {"length": mine.varied, "format": think_then_answer}
    run(inputs, tmp_path, rl_settings(reward=Mix(terms=terms, weights={"length": 0.5, "format": 0.1}), steps=1))
    [row] = metrics(tmp_path)
    rows = read_rows(tmp_path / "rollouts" / "step-000001.parquet")
    mean = sum(r["term.length"] for r in rows) / len(rows)
    assert row["raw/length"] == pytest.approx(mean)
    assert row["weighted/length"] == pytest.approx(0.5 * mean)
    assert row["weighted/format"] == pytest.approx(0.1 * row["format"])
    assert row["reward"] == pytest.approx(row["weighted/length"] + row["weighted/format"])
    assert row["length"] == pytest.approx(sum(r["length"] for r in rows) / len(rows))
    assert row["length.tokens"] == pytest.approx(sum(len(r["tokens"]) for r in rows) / len(rows))


def test_a_term_normalised_over_the_step_has_mean_0_in_it(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, mine: ModuleType
) -> None:
    reward = Mix(terms={"mine": mine.varied}, weights={"mine": 2.0}, normalise={"mine": "batch"})
    run(inputs, tmp_path, rl_settings(reward=reward, steps=1))
    rows = read_rows(tmp_path / "rollouts" / "step-000001.parquet")
    totals, raw = [row["total"] for row in rows], [row["term.mine"] for row in rows]
    mean = sum(raw) / len(raw)
    spread = (sum((x - mean) ** 2 for x in raw) / (len(raw) - 1)) ** 0.5
    assert totals == pytest.approx([2 * (x - mean) / (spread + 1e-4) for x in raw])


@pytest.mark.slow
def test_neither_the_number_of_workers_nor_the_load_changes_a_reward_or_a_weight(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, mine: ModuleType
) -> None:
    def train(name: str, workers: int) -> dict[str, str]:
        reward = Mix(
            terms={"mine": mine.varied, "format": think_then_answer},
            weights={"mine": 1.0, "format": 0.1},
            seconds=2.0,
            workers=workers,
        )
        run(inputs, tmp_path / name, rl_settings(reward=reward, curriculum=uniform()))
        return sha(tmp_path / name)

    alone, crowd = train("one", 1), train("four", 4)
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        loaded = train("loaded", 4)
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert alone == crowd == loaded
    totals = {row["total"] for row in read_rows(tmp_path / "one" / "rollouts" / "step-000004.parquet")}
    assert len(totals) > 10


def test_a_resumed_stage_asks_the_judge_nothing_twice(
    inputs: Inputs,
    tmp_path: Path,
    rl_settings: Settings,
    server: Server,  # noqa: F811
) -> None:
    def reward() -> Mix:
        terms = {"judge": server.judge("good", part="response")}
        return Mix(terms=terms, weights={"judge": 1.0})

    class Ends(TorchEngine):
        """A model that has learned nothing never ends by itself; here it is taken to have said all it wanted."""

        def generate(self, prompts: Any, sampling: Any, environment: Any = None) -> Any:
            drawn = super().generate(prompts, sampling, environment)
            return [[replace(completion, finish="stop") for completion in group] for group in drawn]

    settings = {"steps": 3, "quotas": {"reasoning": 2}, "checkpoint_every": 10, "engine": Ends}
    run(inputs, tmp_path / "whole", rl_settings(reward=reward(), **settings))
    questions = [request["question"] for request in server.requests()]
    assert len(questions) == len(set(questions)) > 0
    server.log.unlink()

    class Crash(Exception):
        pass

    def crash(step: int) -> bool:
        raise Crash

    asked = iter([False, True])
    with pytest.raises(Crash):  # in the second step, before there is any checkpoint
        run(inputs, tmp_path / "parts", rl_settings(reward=reward(), **settings), stop=lambda: next(asked) and crash(0))
    before = len(server.requests())
    assert 0 < before < len(questions)
    assert not list((tmp_path / "parts" / "checkpoints").glob("step-*"))
    run(inputs, tmp_path / "parts", rl_settings(reward=reward(), **settings))
    assert sorted(request["question"] for request in server.requests()) == sorted(questions)
    assert sha(tmp_path / "whole") == sha(tmp_path / "parts")
    assert (tmp_path / "parts" / "verdicts" / "judge" / "verdicts.jsonl").exists()


def test_a_slow_term_can_have_figures_of_its_own(mine: ModuleType) -> None:
    term = Isolated(term=partial(mine.varied), seconds=60.0, workers=3)
    assert alone(term).terms["mine"] is term


def test_stopping_still_works_with_workers_about(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings, mine: ModuleType
) -> None:
    with pytest.raises(Interrupted):
        run(inputs, tmp_path, rl_settings(reward=alone(mine.varied, seconds=5)), stop=lambda: True)
