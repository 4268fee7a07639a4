"""A budget in tokens: what a round of RL spent, and training until that is spent."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.rollout.spent import tokens_spent
from components.stages.sft import _plan, sft_check


def test_a_round_spent_what_it_sampled_and_what_it_trained_on_twice_where_a_reference_judged(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "logs").mkdir()
    for step, lengths in ((1, [10, 20]), (2, [30, 5])):
        table = pa.Table.from_pylist([{"length": n, "task_id": "t"} for n in lengths])
        pq.write_table(table, tmp_path / "rollouts" / f"step-{step:06d}.parquet")
    rows = [{"step": 1, "tokens": 30.0}, {"step": 2, "tokens": 7.0, "kl_ref": 0.1}, {"step": 3}]
    (tmp_path / "logs" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tokens_spent(path=tmp_path) == (10 + 20 + 30 + 5) + 30 + 2 * 7


def test_a_budget_of_no_rl_stage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name an RL stage"):
        tokens_spent(path=tmp_path)


def test_training_ends_with_the_batch_that_spends_the_budget() -> None:
    lengths = [10] * 8
    assert [len(part) for part in _plan(lengths, 4, (0, "sft"), 2, None)] == [4, 4, 4, 4]
    assert len(list(_plan(lengths, 4, (0, "sft"), 2, 40))) == 1
    assert len(list(_plan(lengths, 4, (0, "sft"), 2, 41))) == 2
    assert len(list(_plan(lengths, 4, (0, "sft"), 1, 200))) == 5


def test_every_epoch_of_a_budget_is_the_epoch_that_it_is_without() -> None:
    lengths = list(range(5, 25))
    assert list(_plan(lengths, 4, (0, "sft"), 2, None)) == list(_plan(lengths, 4, (0, "sft"), 9, 2 * sum(lengths)))


def test_no_budget_at_all_is_named_before_anything_runs() -> None:
    settings = {"files": {"data": ["x.jsonl"]}, "tokens": 0}
    [problem] = sft_check(settings, {"model": "base", "data": "curate"}, 1, {})
    assert problem == "tokens: must be at least 1 (got 0). Fix: leave it out, epochs then count"
