"""DAPO's rule: which groups carry signal."""

import pytest

from components.curriculum.dynamic import accuracy, keep_informative, variance
from components.types import Group, Message, Rollout, Score, Task


def group(*scores: Score) -> Group:
    task = Task("t", (Message("user", "q"),), "1", "exact")
    return Group(task, tuple(Rollout("t", (1,), (2,), (True,), (0.0,), "x", "stop") for _ in scores), scores)


def right(value: float, total: float | None = None) -> Score:
    return Score(value if total is None else total, {"accuracy": value})


FAILED = Score(0.0, {"accuracy": 0.0}, "failed", "sandbox died")


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((right(1), right(0)), "kept"),
        ((right(1), right(1)), "solved"),
        ((right(0), right(0)), "unsolved"),
        ((right(1, 1.3), right(1, 0.8)), "solved"),  # shaping makes totals differ; the rule looks at raw accuracy
        ((right(0.5), right(0.5)), "kept"),  # partial credit: between 0 and 1
        ((right(1), right(1), FAILED), "solved"),  # a failure is not a wrong answer
        ((FAILED, FAILED), "unscored"),
        ((), "unscored"),
        ((Score(0.2), Score(0.7)), "kept"),  # nothing verified: totals decide
        ((Score(0.2), Score(0.2)), "flat"),
    ],
)
def test_a_group_is_kept_if_its_raw_accuracy_lies_between_zero_and_one(scores, verdict: str) -> None:
    kept, counts = keep_informative([group(*scores)])
    assert counts[verdict] == 1 == sum(counts.values())
    assert len(kept) == (verdict == "kept")


def test_kept_groups_keep_their_order_and_the_term_has_a_name() -> None:
    one, two = (group(Score(t, {"passed": v}), Score(0, {"passed": 0})) for t, v in ((1, 1), (5, 1)))
    none = group(Score(1, {"passed": 0, "accuracy": 1}), Score(0, {"passed": 0, "accuracy": 0}))
    kept, counts = keep_informative([one, none, two], term="passed")
    assert kept == [one, two]
    assert counts == {"kept": 2, "solved": 0, "unsolved": 1, "flat": 0, "unscored": 0}


def test_accuracy_and_variance_are_over_scored_rollouts() -> None:
    mixed = group(right(1, 1.5), right(0, 0.5), FAILED)
    assert accuracy(mixed) == 0.5
    assert variance(mixed) == 0.25
    assert accuracy(group(FAILED)) is None
    assert variance(group(FAILED)) is None
    assert accuracy(mixed, "other") is None
