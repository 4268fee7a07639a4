"""Nothing is solved: every reward is the same 0, or no answer is right while cheaper terms still pay."""

from __future__ import annotations

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import truth
from components.evaluation.doctor.record import RECENT, Record

MIN_ROLLOUTS = 40


def zero_reward(record: Record) -> Finding | None:
    """Over the last five steps: reward and spread exactly 0 (error), or a truth term exactly 0 (warning)."""
    rewards, signal = record.last("reward"), record.last("signal")
    if rewards and signal and not any(rewards) and not any(signal):
        return record.finding(
            "zero_reward",
            f"every reward of the last {RECENT} steps was 0{_beside(record)}: no update moved the policy.",
            _remedy(record),
            severity="error",
            shown=record.show(lambda row: True),
            reward=0.0,
        )
    for name in record.truths:
        values = record.last(name)
        if not rewards or not values or any(values) or sum(view.n for view in record.recent_groups) < MIN_ROLLOUTS:
            continue
        return record.finding(
            "zero_reward",
            f"not one answer of the last {RECENT} steps was right (term {name} 0{_beside(record)}), all groups are "
            f"unsolved; the mean reward of {rewards[-1]:.2f} comes from other terms.",
            _remedy(record),
            shown=record.show(lambda row: truth(row) is not None, best="total"),
            reward=rewards[-1],
            truth=0.0,
        )
    return None


def _shares(record: Record) -> tuple[float, float]:
    """Of the recent rollouts: the share with an answer, and the share cut off; (1, 0) where none are known."""
    views = record.recent_groups
    if not (total := sum(view.n for view in views)):
        return 1.0, 0.0
    answered = sum(view.marked.get("answered", 0) for view in views)
    return answered / total, sum(view.truncated for view in views) / total


def _beside(record: Record) -> str:
    answered, cut = _shares(record)
    known = bool(record.recent_groups)
    return f"; {answered:.0%} of the responses had an answer, {cut:.0%} were cut off" if known else ""


def _remedy(record: Record) -> str:
    answered, cut = _shares(record)
    if cut > 0.5:
        return f"responses do not end: raise {record.stage}.max_new_tokens, or check the end token of the template."
    if answered < 0.1:
        return "the policy does not know the form: put a cold start (SFT) before this stage, or check the template."
    return (
        "check the verifier on a few right answers, then start from easier tasks (curriculum=staged) or from a "
        f"stronger cold start; raise {record.stage}.group_size if the pass rate is tiny."
    )
