"""Responses get much longer or shorter and no better for it."""

from __future__ import annotations

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.trends import CERTAIN, no_better, stretches

TIMES = 2.0


def length_drift(record: Record) -> Finding | None:
    """At equal difficulty, the mean length doubled or halved from the first third of the steps to the last, while
    accuracy surely did not rise by five points."""
    for stretch in stretches(record.groups):
        length, truth = stretch.change(lambda view: view.length), stretch.change(lambda view: view.truth)
        if length is None or not no_better(truth) or truth is None or abs(length.z) < CERTAIN:
            continue
        longer = length.late >= TIMES * length.early
        if not longer and length.late > length.early / TIMES:
            continue
        return record.finding(
            "length_drift",
            f"responses went from {length.early:.0f} to {length.late:.0f} tokens at equal difficulty, accuracy "
            f"{truth.text()}.",
            "punish overlong responses softly (algorithm=dapo), or aggregate so that long ones are not favoured "
            "(algorithm=dr_grpo)."
            if longer
            else "look for a term that pays for brevity or an early stop, and give thinking a reason to stay.",
            step=stretch.step,
            shown=record.show(stretch.holds, best="length" if longer else ""),
            early=length.early,
            late=length.late,
            accuracy_change=truth.effect,
        )
    return None
