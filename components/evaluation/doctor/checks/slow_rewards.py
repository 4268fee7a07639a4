"""Scoring takes longer than sampling and learning together."""

from __future__ import annotations

from statistics import median

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import RECENT, Record

SECONDS = 0.5


def slow_rewards(record: Record) -> Finding | None:
    """Median over the last five steps: scoring took half a second or more, and more than half of the step."""
    reward, rollout, update = (record.last(f"seconds_{name}") for name in ("reward", "rollout", "update"))
    if not reward or not rollout or not update:
        return None
    scoring, whole = median(reward), median(map(sum, zip(reward, rollout, update, strict=True)))
    if scoring < SECONDS or scoring <= whole / 2:
        return None
    return record.finding(
        "slow_rewards",
        f"scoring takes {scoring:.1f} of {whole:.1f} s a step (median of the last {RECENT}); sampling takes "
        f"{median(rollout):.1f} s, the update {median(update):.1f} s.",
        "give the slow term more workers or a batched call (`batch(pairs)`), cache its verdicts, or leave it out of "
        "the first steps (reward.active).",
        reward_s=scoring,
        step_s=whole,
    )
