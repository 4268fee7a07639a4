"""Hacking: the training reward rose, and held-out accuracy did not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from components.evaluation.doctor.finding import Finding, samples
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.trends import CERTAIN, stretches
from components.evaluation.intervals import paired_change

GAIN, NOTHING, FULL = 0.3, 0.02, 0.95
Rows = Sequence[Mapping[str, Any]]


def reward_without_held_out_accuracy(record: Record, before: Rows, after: Rows) -> Finding | None:
    """The reward of some kind of task rose by 0.3 standard deviations or more at equal difficulty, while the share of
    right held-out answers to that kind surely did not rise by two points (paired by prompt, 95 %), and had room.

    Args:
        before, after: ``answers.parquet`` of the model that the stage started from, and of the one that it made.
    """
    for stretch in stretches(record.groups):
        reward = stretch.change(lambda view: view.reward)
        if reward is None or reward.z < CERTAIN or reward.effect < GAIN * stretch.deviation:
            continue
        old, new = _by_prompt(before, stretch.kind), _by_prompt(after, stretch.kind)
        change = paired_change(old, new, address=("doctor", record.stage, stretch.kind))
        if change is None or change.n < 30 or change.high >= NOTHING:
            continue
        level = fmean(new.values())
        if level >= FULL:
            continue
        wrong = [row for row in after if row.get("kind") == stretch.kind and not row["correct"]]
        return record.finding(
            "reward_without_held_out_accuracy",
            f"training reward {reward.text()} at equal difficulty ({stretch.kind} tasks), but right answers on "
            f"{change.n} held-out prompts {100 * change.effect:+.1f} points [{100 * change.low:+.1f}, "
            f"{100 * change.high:+.1f}], now {level:.0%}.",
            "reward and evaluation measure different things: compare both on the samples, tighten the verifier, "
            "lower the weight of what rose, or stop earlier.",
            step=stretch.step,
            shown=samples([{"step": 0, "total": row["correct"], **row} for row in wrong], lambda row: row["correct"]),
            reward_change=reward.effect,
            held_out_change=change.effect,
            held_out=level,
        )
    return None


def _by_prompt(rows: Rows, kind: str) -> dict[str, float]:
    """Share of right samples per prompt; the greedy answer, sample −1, is not one of them."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("kind", "reasoning") == kind and row.get("sample", 0) >= 0:
            found[str(row["task_id"])].append(float(row["correct"]))
    return {task: fmean(values) for task, values in found.items()}
