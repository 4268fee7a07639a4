"""Responses are cut at the token limit before they answer."""

from __future__ import annotations

from statistics import fmean

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import RECENT, Record

MANY, NEARLY_ALL = 0.3, 0.8


def truncation(record: Record) -> Finding | None:
    """30 % or more of the rollouts of the last five steps hit the limit; an error from 80 % on."""
    cut = record.last("truncated")
    if not cut or (share := fmean(cut)) < MANY:
        return None
    limit = record.settings.get("max_new_tokens", "the token limit")
    answered = [view for view in record.recent_groups if view.truncated]
    had = sum(view.marked.get("ran_on", 0) for view in answered) / max(1, sum(view.truncated for view in answered))
    if had >= 0.3:
        remedy = (
            f"{had:.0%} of those cut had answered already and went on: the policy never emits its end token. Check "
            "eos_token_id of the model against the chat template."
        )
    else:
        remedy = (
            f"raise {record.stage}.max_new_tokens (now {limit}), or keep lengths down (algorithm=dapo punishes "
            "overlong responses softly); cut responses score as wrong."
        )
    return record.finding(
        "truncation",
        f"{share:.0%} of the rollouts of the last {RECENT} steps were cut off at {limit} tokens.",
        remedy,
        severity="error" if share >= NEARLY_ALL else "warning",
        shown=record.show(lambda row: row["finish"] == "length"),
        truncated=share,
        answered=had,
    )
