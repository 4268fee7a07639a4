"""No group has signal: rewards within each group agree, so every advantage is 0."""

from __future__ import annotations

from statistics import fmean

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import RECENT, Record

FEW = 0.02


def no_gradient(record: Record) -> Finding | None:
    """Under 2 % of the groups of the last five steps had rewards that differ; says whether all were solved, none, or
    the reward is constant. Silent where every reward is 0: `zero_reward` says that."""
    signal, rewards = record.last("signal"), record.last("reward")
    groups = record.last("groups_used")
    if not signal or fmean(signal) >= FEW or (groups and sum(groups) < 20 and any(signal)) or not any(rewards):
        return None
    level = fmean(values) if (values := [v for name in record.truths for v in record.last(name)]) else None
    if level is not None and level >= 0.98:
        cause = "all groups are solved"
        remedy = "nothing is left to learn here: harder tasks (curriculum=pass_rate, higher levels), or fewer steps."
    elif level is not None and level <= 0.02:
        cause = "no group is solved"
        remedy = f"start from easier tasks or a stronger cold start, or raise {record.stage}.group_size."
    else:
        cause = "the reward is constant within every group"
        remedy = (
            "the rollouts of a prompt do not differ, or the reward does not tell them apart: check temperature "
            f"({record.settings.get('temperature', 'default')}) and the reward's terms."
        )
    right = "" if level is None else f", accuracy {level:.2f}"
    return record.finding(
        "no_gradient",
        f"{cause}: {fmean(signal):.1%} of the groups of the last {RECENT} steps had rewards that differ "
        f"(reward {fmean(rewards):.2f}{right}).",
        remedy,
        shown=record.show(lambda row: True),
        signal=fmean(signal),
        reward=fmean(rewards),
    )
