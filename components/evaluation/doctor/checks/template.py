"""Template and tags: answers are there, but what should frame them is doubled, swallowed or never accepted."""

from __future__ import annotations

from statistics import fmean

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import RECENT, Record

MOST, SOME = 0.5, 0.3
MIN_ROLLOUTS = 40


def template(record: Record) -> Finding | None:
    """Over the last five steps: half of the responses close a thought that was never opened, or open two; or a format
    term is exactly 0 although at least 30 % of the responses have an answer."""
    views = record.recent_groups
    total = sum(view.n for view in views)
    if len({view.step for view in views}) < RECENT or total < MIN_ROLLOUTS:
        return None
    share = {m: sum(v.marked.get(m, 0) for v in views) / total for m in ("answered", "no_open", "double_open")}
    rejected = [
        name
        for name in {name for view in views for name in view.terms}
        if "format" in name and not any(view.terms.get(name, 0.0) for view in views)
    ]
    if share["no_open"] >= MOST:
        what = f"{share['no_open']:.0%} of the responses hold </think> without <think>"
        remedy = (
            "the chat template pre-fills <think> and it is lost before scoring: score the template's prefill together "
            "with the completion, or take it out of the template."
        )
        mark = "no_open"
    elif share["double_open"] >= MOST:
        what = f"{share['double_open']:.0%} of the responses open <think> twice"
        remedy = (
            "the chat template pre-fills <think> and the model writes it again: take it out of the template, or train "
            "the cold start with the same template."
        )
        mark = "double_open"
    elif rejected and share["answered"] >= SOME:
        what = f"{share['answered']:.0%} of the responses have an answer"
        remedy = (
            "the format check and the template disagree: look at the samples for the tag that it misses (an end token "
            "left in the text, text after </answer>, other tags)."
        )
        mark = "answered"
    else:
        return None
    scored = f", and the term {rejected[0]} was 0 on all {total} rollouts" if rejected else ""
    right = [view.truth for view in views if view.truth is not None]
    return record.finding(
        "template",
        f"{what} in the last {RECENT} steps{scored} (accuracy {fmean(right):.2f})."
        if right
        else f"{what} in the last {RECENT} steps{scored}.",
        remedy,
        severity="error" if rejected else "warning",
        shown=record.show(lambda row: _suits(str(row["response"]), mark)),
        answered=share["answered"],
        no_open=share["no_open"],
        double_open=share["double_open"],
    )


def _suits(response: str, mark: str) -> bool:
    opened = response.count("<think>")
    return {"no_open": opened == 0, "double_open": opened > 1}.get(mark, "</answer>" in response)
