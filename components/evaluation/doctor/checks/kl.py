"""The policy runs away from the one that sampled, or from its reference."""

from __future__ import annotations

from statistics import fmean, median

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.trends import column

OLD, REFERENCE, RISING, TIMES = 0.05, 1.0, 0.3, 10.0  # nats per token; times the earlier median
LAST = 3


def kl_blow_up(record: Record) -> Finding | None:
    """Mean of the last three steps: drift since sampling over 0.05 nats a token, or divergence from the reference over
    1 nat, or over 0.3 and ten times the median of the steps before."""
    for name, limit in (("kl_old", OLD), ("kl_ref", REFERENCE)):
        values = column(record.steps, name)
        if len(values) < LAST:
            continue
        now, before = fmean(values[-LAST:]), median(values[:-LAST] or [0.0])
        rising = name == "kl_ref" and len(values) >= 4 * LAST and now > max(RISING, TIMES * before)
        if now <= limit and not rising:
            continue
        against = "the policy that sampled" if name == "kl_old" else "the reference"
        remedy = (
            f"lower {record.stage}.lr, or take fewer updates per batch ({record.stage}.minibatches)."
            if name == "kl_old"
            else f"lower {record.stage}.lr or raise {record.stage}.beta; check that the reward is not being exploited."
        )
        return record.finding(
            "kl_blow_up",
            f"{name}, the divergence from {against}, is {now:.3f} nats a token over the last {LAST} steps "
            f"(median before: {before:.4f}).",
            remedy,
            shown=record.show(lambda row: True),
            now=now,
            before=before,
        )
    return None
