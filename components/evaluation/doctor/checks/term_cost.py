"""Hacking: a term gains, and accuracy pays for it."""

from __future__ import annotations

from components.evaluation.doctor.checks.reward_alone import driving_term
from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import truth
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.trends import CERTAIN, stretches

LOSS = 0.05


def term_at_accuracys_cost(record: Record) -> Finding | None:
    """At equal difficulty, from the first third of the steps to the last: accuracy fell by five points or more, surely,
    another term gained surely, and the reward did not fall: the policy was paid to get worse."""
    for stretch in stretches(record.groups):
        reward, right = stretch.change(lambda view: view.reward), stretch.change(lambda view: view.truth)
        if reward is None or right is None or right.z > -CERTAIN or right.effect > -LOSS or reward.high < 0:
            continue
        if not (driver := driving_term(stretch)):
            continue
        name, before, after = driver
        return record.finding(
            "term_at_accuracys_cost",
            f"term {name} {before:.2f} → {after:.2f} at equal difficulty, accuracy {right.text()}, reward "
            f"{reward.text()}.",
            f"accuracy must outweigh what {name} can gain: lower {record.stage}.reward.weights.{name}, or grant it to "
            "right answers only.",
            step=stretch.step,
            shown=record.show(lambda row: (truth(row) or 0.0) < 0.5, best="total"),
            accuracy_change=right.effect,
            term_change=after - before,
            reward_change=reward.effect,
        )
    return None
