"""Rejection sampling that prefers what succeeds without a detour."""

from collections import Counter

from components.stages.reject import _short
from components.types import Rollout


def sample(length: int) -> Rollout:
    return Rollout("t", (), tuple(range(length)), (True,) * length, (0.0,) * length, "", "stop")


def lengths(rollouts):
    return [len(rollout.tokens) for rollout in rollouts]


def test_only_the_shortest_are_kept_and_the_rest_is_counted():
    reasons: Counter[str] = Counter()
    assert lengths(_short([sample(9), sample(6), sample(7), sample(6)], 1.0, reasons)) == [6, 6]
    assert reasons == {"longer than need be": 2}


def test_a_margin_lets_somewhat_longer_ones_pass_shorter_ones_first():
    reasons: Counter[str] = Counter()
    assert lengths(_short([sample(9), sample(6), sample(7)], 1.2, reasons)) == [6, 7]
    assert reasons["longer than need be"] == 1


def test_without_a_limit_all_are_kept_in_the_order_they_came():
    reasons: Counter[str] = Counter()
    assert lengths(_short([sample(9), sample(6)], None, reasons)) == [9, 6]
    assert lengths(_short([], 1.0, reasons)) == []
    assert not reasons
