"""Hacking: the reward keeps rising and accuracy does not."""

from __future__ import annotations

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import TRUTH, truth
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.trends import CERTAIN, Stretch, change, no_better, slope, stretches

GAIN = 0.3  # standard deviations of the reward
STILL = 0.25  # share of the gain that fell after the middle of the stretch


def reward_alone(record: Record) -> Finding | None:
    """At equal difficulty, over thirds of the steps: the reward rose by 0.3 standard deviations or more and still
    rises, accuracy surely did not rise by five points though it had room, and what rose is not what right answers need.

    A cheap term that saturates is no exploit: once it is full, the reward stands still. Nor is one that right answers
    need, as format is: within a group, rollouts that have more of it are right more often.
    """
    for stretch in stretches(record.groups):
        reward, right = stretch.change(lambda view: view.reward), stretch.change(lambda view: view.truth)
        if reward is None or not no_better(right) or right is None or not right.early:
            continue
        lately = change(stretch.middle, stretch.late, lambda view: view.reward)
        rises = reward.z >= CERTAIN and reward.effect >= GAIN * stretch.deviation
        if not rises or lately is None or lately.z < 2 or lately.effect < STILL * reward.effect:
            continue
        if not (driver := driving_term(stretch)):
            continue
        name, before, after = driver
        return record.finding(
            "reward_without_accuracy",
            f"reward {reward.text()} at equal difficulty and still rising, accuracy {right.text()}; what rises is the "
            f"term {name}, {before:.2f} → {after:.2f}.",
            f"read the samples: the policy is paid for {name} without solving more. Lower its weight "
            f"({record.stage}.reward.weights.{name}, 0 takes it out), bound it, or grant it to right answers only.",
            step=stretch.step,
            shown=record.show(lambda row: (truth(row) or 0.0) < 0.5, best="total"),
            reward_change=reward.effect,
            accuracy_change=right.effect,
            term_change=after - before,
        )
    return None


def driving_term(stretch: Stretch) -> tuple[str, float, float] | None:
    """(name, early, late) of the term other than the truth that gained most, in its own standard errors; None if none
    gained, or if right answers need it."""
    names = {name for view in stretch.groups for name in view.terms if name not in TRUTH}
    gains = [(c.z, name, c) for name in names if (c := stretch.change(lambda v, n=name: v.terms.get(n))) is not None]
    z, name, gain = max(gains, default=(0.0, "", None), key=lambda item: (item[0], item[1]))
    if gain is None or z < CERTAIN:
        return None
    helps, certain = slope([view.term_pull[name] for view in stretch.groups if name in view.term_pull])
    return None if helps > 0 and certain >= CERTAIN else (name, gain.early, gain.late)
