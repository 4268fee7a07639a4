"""The policy runs away from the one that sampled, or from its reference."""

from __future__ import annotations

from statistics import fmean, median

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import RECENT, Record
from components.evaluation.doctor.trends import column

LEAP = 1.0  # nats a token in one step: the policy that sampled is gone
LIMITS = {"kl_old": 0.05, "kl_ref": 1.0}
RISING, TIMES = 0.3, 10.0  # of kl_ref: nats a token, and times the median of the steps before
LAST = 3


def kl_blow_up(record: Record) -> Finding | None:
    """Drift since sampling over 1 nat a token in one of the last five steps (error); or as a mean of three steps over
    0.05 nats, or divergence from the reference over 1 nat, or over 0.3 and ten times the median of the steps before."""
    leap = max(column(record.steps[-RECENT:], "kl_old"), default=0.0)
    if leap > LEAP:
        return record.finding(
            "kl_blow_up",
            f"one update moved the policy by kl_old = {leap:.1f} nats a token from the one that sampled.",
            f"lower {record.stage}.lr: an update of this size destroys the policy; go back to an earlier checkpoint.",
            severity="error",
            shown=record.show(lambda row: True),
            now=leap,
        )
    for name, limit in LIMITS.items():
        values = column(record.steps, name)
        if len(values) < LAST:
            continue
        now, before = fmean(values[-LAST:]), median(values[:-LAST] or [0.0])
        rising = name == "kl_ref" and len(values) >= 4 * LAST and now > max(RISING, TIMES * before)
        if now <= limit and not rising:
            continue
        old = name == "kl_old"
        return record.finding(
            "kl_blow_up",
            f"{name}, the divergence from {'the policy that sampled' if old else 'the reference'}, is {now:.3f} nats a "
            f"token over the last {LAST} steps (median before: {before:.4f}).",
            f"lower {record.stage}.lr, or take fewer updates per batch ({record.stage}.minibatches)."
            if old
            else f"lower {record.stage}.lr or raise {record.stage}.beta; check that the reward is not being exploited.",
            shown=record.show(lambda row: True),
            now=now,
            before=before,
        )
    return None
