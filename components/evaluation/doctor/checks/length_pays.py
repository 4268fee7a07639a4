"""Hacking: longer responses are rewarded for their length, and the policy follows."""

from __future__ import annotations

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.trends import CERTAIN, no_better, slope, stretches

GROWTH, WORTH = 1.2, 0.1


def length_pays(record: Record) -> Finding | None:
    """At equal difficulty, length rose by a fifth or more and accuracy surely did not by five points; among equally
    right rollouts of a group the longer ones earn more; and the growth so far is worth at least a tenth of the reward's
    standard deviation."""
    for stretch in stretches(record.groups):
        length, truth = stretch.change(lambda view: view.length), stretch.change(lambda view: view.truth)
        if length is None or truth is None or not no_better(truth):
            continue
        per_token, z = slope([view.length_pull for view in stretch.groups])
        worth = per_token * length.effect
        grows = length.late >= GROWTH * length.early and length.z >= CERTAIN
        if not grows or z < CERTAIN or worth < WORTH * stretch.deviation:
            continue
        return record.finding(
            "length_pays",
            f"among equally right rollouts of a prompt ten tokens more earn {10 * per_token:+.3f}; length rose from "
            f"{length.early:.0f} to {length.late:.0f} tokens at equal difficulty, accuracy {truth.text()}.",
            "find the term that grows with length and bound it or take it out, or punish length at equal correctness.",
            step=stretch.step,
            shown=record.show(stretch.holds, best="length"),
            per_token=per_token,
            early=length.early,
            late=length.late,
            accuracy_change=truth.effect,
        )
    return None
