"""The policy stopped exploring before it had learned what there is to learn."""

from __future__ import annotations

from statistics import fmean

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import GroupView, truth
from components.evaluation.doctor.record import RECENT, Record
from components.evaluation.doctor.trends import column

LEFT, ALIKE, UNSOLVED = 0.1, 0.15, 0.2


def entropy_collapse(record: Record) -> Finding | None:
    """Entropy under a tenth of its start, while groups that are not solved sample the same responses over and over:
    different ones per group under 15 %, in at least 20 % of the groups.

    Low entropy alone is no finding: a policy that has learned its tasks has it too.
    """
    entropy = column(record.steps, "entropy")
    views = [view for view in record.recent_groups if view.n > 2]
    if len(entropy) < 2 * RECENT or len(views) < 20:
        return None
    start, now = fmean(entropy[:RECENT]), fmean(entropy[-RECENT:])
    stuck = [view for view in views if not _solved(view)]
    if start <= 0 or now >= LEFT * start or len(stuck) < UNSOLVED * len(views):
        return None
    if (distinct := fmean((view.distinct - 1) / (view.n - 1) for view in stuck)) >= ALIKE:
        return None
    return record.finding(
        "entropy_collapse",
        f"entropy fell from {start:.3f} to {now:.3f} nats a token; {len(stuck) / len(views):.0%} of the recent groups "
        f"are not solved, and only {distinct:.0%} of their rollouts differ from the first.",
        f"lower {record.stage}.lr, raise the upper clip (algorithm=dapo) or the KL term ({record.stage}.beta), add an "
        "entropy bonus (algorithm.entropy), or sample at a higher temperature.",
        shown=record.show(lambda row: (truth(row) or 0.0) < 0.5),
        start=start,
        entropy=now,
        distinct=distinct,
    )


def _solved(view: GroupView) -> bool:
    return view.truth is not None and view.truth >= 0.999
