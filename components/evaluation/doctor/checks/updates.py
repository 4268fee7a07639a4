"""Updates that were skipped, and figures that are not finite."""

from __future__ import annotations

import math

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import Record

WINDOW, SEVERAL = 10, 3
_DIVERGED = ("TrainingDiverged", "had no usable gradient")
_WATCHED = ("loss", "grad_norm", "reward", "entropy", "kl_old", "kl_ref", "critic_loss", "value_loss")


def bad_updates(record: Record) -> Finding | None:
    """An update was skipped because loss or gradient was not finite, or a figure of a step is NaN or infinite; an error
    from three skipped updates in ten steps on, or if the stage stopped for it."""
    recent = record.steps[-WINDOW:]
    skipped = sum(float(row.get("updates_skipped", 0.0)) for row in recent)
    wrong = [
        (row["step"], name)
        for row in recent
        for name in _WATCHED
        if name in row and not math.isfinite(float(row[name]))
    ]
    stopped = any(sign in record.failure for sign in _DIVERGED)
    if not skipped and not wrong and not stopped:
        return None
    told = [f"{skipped:.0f} updates of the last {len(recent)} steps were skipped"] if skipped else []
    told += [f"{wrong[0][1]} is not finite at step {wrong[0][0]:.0f}"] if wrong else []
    told += ["the stage stopped after several updates in a row without a usable gradient"] if stopped else []
    return record.finding(
        "bad_updates",
        "; ".join(told) + ".",
        f"lower {record.stage}.lr; if the loss was not finite from the first step, look at the batch: a reward or "
        "log-probability that is not finite, an empty mask, or weights in half precision.",
        severity="error" if stopped or skipped >= SEVERAL else "warning",
        skipped=skipped,
        not_finite=float(len(wrong)),
    )
