"""The policy stopped exploring before it had learned what there is to learn."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import GroupView, truth
from components.evaluation.doctor.record import RECENT, Record
from components.evaluation.doctor.trends import column

ALIKE, FELL, UNSOLVED = 0.15, 3.0, 0.2
MIN_GROUPS = 20


def entropy_collapse(record: Record) -> Finding | None:
    """At least 20 % of the recent groups are not solved, and under 15 % of their rollouts differ from the first, a
    third or less of what it was in the first five steps.

    What was sampled is counted, not only the entropy: that is logged over the tokens that were trained on, which leaves
    out the very groups that agree; and a policy that has learned its tasks has a low entropy too.
    """
    recent = [view for view in record.recent_groups if view.n > 2]
    steps = sorted({view.step for view in record.groups})
    if len(steps) < 2 * RECENT or len(recent) < MIN_GROUPS:
        return None
    stuck = [view for view in recent if not _solved(view)]
    before = _variety([view for view in record.groups if view.step <= steps[RECENT - 1] and not _solved(view)])
    now = _variety(stuck)
    if len(stuck) < UNSOLVED * len(recent) or not before or now is None or now >= ALIKE or now > before / FELL:
        return None
    entropy = column(record.steps, "entropy")
    nats = f"; entropy {fmean(entropy[:RECENT]):.3f} → {fmean(entropy[-RECENT:]):.3f} nats a token" if entropy else ""
    return record.finding(
        "entropy_collapse",
        f"{len(stuck) / len(recent):.0%} of the groups of the last {RECENT} steps are not solved, and {now:.0%} of "
        f"their rollouts differ from the first, {before:.0%} at the start{nats}.",
        f"lower {record.stage}.lr, raise the upper clip (algorithm=dapo) or the KL term ({record.stage}.beta), add an "
        "entropy bonus (algorithm.entropy), or sample at a higher temperature.",
        shown=record.show(lambda row: (truth(row) or 0.0) < 0.5),
        before=before,
        now=now,
    )


def _variety(views: Sequence[GroupView]) -> float | None:
    """Share of the rollouts after a group's first that are new in it."""
    return fmean([(view.distinct - 1) / (view.n - 1) for view in views if view.n > 1]) if views else None


def _solved(view: GroupView) -> bool:
    return view.truth is not None and view.truth >= 0.999
