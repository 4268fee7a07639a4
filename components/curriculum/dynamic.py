"""Which groups carry signal: DAPO's rule, judged on raw accuracy before any shaping (arXiv:2503.14476 §3.2)."""

from collections.abc import Iterable

from components.types import Group

_TOLERANCE = 1e-6  # totals closer than this are equal


def accuracy(group: Group, term: str = "accuracy") -> float | None:
    """Mean of the raw score term over the group's scored rollouts; None if no scored rollout has the term."""
    values = [score.terms[term] for score in group.scores if score.outcome == "scored" and term in score.terms]
    return sum(values) / len(values) if values else None


def variance(group: Group) -> float | None:
    """Population variance of the total reward over the group's scored rollouts; None if there are none."""
    totals = [score.total for score in group.scores if score.outcome == "scored"]
    if not totals:
        return None
    mean = sum(totals) / len(totals)
    return sum((total - mean) ** 2 for total in totals) / len(totals)


def verdict(group: Group, term: str = "accuracy") -> str:
    """ "kept", or why the group teaches nothing: "solved", "unsolved", "flat" or "unscored".

    Kept is 0 < accuracy < 1. Where nothing is verified (no such term), a group is kept if its total rewards differ.
    """
    totals = [score.total for score in group.scores if score.outcome == "scored"]
    if not totals:
        return "unscored"
    rate = accuracy(group, term)
    if rate is None:
        return "kept" if max(totals) - min(totals) >= _TOLERANCE else "flat"
    return "kept" if 0 < rate < 1 else "solved" if rate >= 1 else "unsolved"


def keep_informative(groups: Iterable[Group], term: str = "accuracy") -> tuple[list[Group], dict[str, int]]:
    """Groups with signal, and how many groups got each `verdict`."""
    kept: list[Group] = []
    counts: dict[str, int] = {"kept": 0, "solved": 0, "unsolved": 0, "flat": 0, "unscored": 0}
    for group in groups:
        judged = verdict(group, term)
        counts[judged] += 1
        if judged == "kept":
            kept.append(group)
    return kept, counts
