"""Nothing is solved: every reward is the same 0, or no answer is right while cheaper terms still pay."""

from __future__ import annotations

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import truth
from components.evaluation.doctor.record import RECENT, Record


def zero_reward(record: Record) -> Finding | None:
    """Over the last five steps: reward and spread exactly 0 (error), or a truth term exactly 0 (warning)."""
    rewards, signal = record.last("reward"), record.last("signal")
    if rewards and not any(rewards) and signal and not any(signal):
        return record.finding(
            "zero_reward",
            f"every reward of the last {RECENT} steps was 0{_beside(record)}, so no update moved the policy.",
            _remedy(record),
            severity="error",
            shown=record.show(lambda row: True),
            reward=0.0,
            steps=RECENT,
        )
    for name in record.truths:
        values = record.last(name)
        if values and not any(values) and sum(view.n for view in record.recent_groups) >= 40:
            return record.finding(
                "zero_reward",
                f"not one answer of the last {RECENT} steps was right (term {name} 0{_beside(record)}), all groups are "
                f"unsolved; the mean reward of {rewards[-1]:.2f} comes from the other terms."
                if rewards
                else f"term {name} was 0 throughout the last {RECENT} steps.",
                _remedy(record),
                shown=record.show(lambda row: truth(row) is not None, best="total"),
                **{name: 0.0},
                reward=rewards[-1] if rewards else 0.0,
            )
    return None


def _beside(record: Record) -> str:
    views = record.recent_groups
    if not views:
        return ""
    total = sum(view.n for view in views)
    cut = sum(view.truncated for view in views) / total
    answered = sum(view.marked.get("answered", 0) for view in views) / total
    return f"; {answered:.0%} of the responses had an answer, {cut:.0%} were cut off"


def _remedy(record: Record) -> str:
    views = record.recent_groups
    total = sum(view.n for view in views) or 1
    if sum(view.truncated for view in views) / total > 0.5:
        return f"responses do not end: raise {record.stage}.max_new_tokens, or check the end token of the template."
    if views and sum(view.marked.get("answered", 0) for view in views) / total < 0.1:
        return "the policy does not know the form: put a cold start (SFT) before this stage, or check the template."
    return (
        "check the verifier on a few right answers (r1flow plan), then start from easier tasks (curriculum=staged) or "
        f"from a stronger cold start; raise {record.stage}.group_size if the pass rate is tiny."
    )
