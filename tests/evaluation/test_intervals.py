import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.evaluation.intervals import (
    Estimate,
    holm,
    macro_estimate,
    mean_estimate,
    paired_change,
    share_estimate,
    t_quantile,
    wilson,
)


@pytest.mark.parametrize(
    ("df", "expected"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (10, 2.2281), (30, 2.0423)]
)
def test_t_quantile_matches_the_tables(df, expected):
    assert t_quantile(df) == pytest.approx(expected, abs=4e-3)


def test_wilson_matches_the_textbook():
    # 8 of 10: Brown, Cai & DasGupta's formula by hand with z = 1.95996
    assert wilson(0.8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611252), abs=1e-6)


def test_mean_interval_is_students():
    # mean 2, s = 1, n = 3: 2 ± 4.30265 / √3
    estimate = mean_estimate([1, 2, 3])
    assert (estimate.value, estimate.n) == (2, 3)
    assert estimate.high - 2 == pytest.approx(4.30265 / math.sqrt(3), abs=1e-4)
    assert 2 - estimate.low == pytest.approx(4.30265 / math.sqrt(3), abs=1e-4)


def test_a_share_without_spread_still_has_a_bound():
    assert share_estimate([0.0] * 20, samples=80).high > 0.15
    assert share_estimate([1.0] * 20, samples=80).low < 0.85
    one = share_estimate([0.5], samples=4)
    assert one.low < 0.2
    assert one.high > 0.8


def test_samples_of_a_prompt_that_agree_count_once():
    """Ten prompts sampled four times, all samples of a prompt alike: worth ten trials, not forty."""
    alike = share_estimate([1.0] * 5 + [0.0] * 5, samples=40)
    independent = wilson(0.5, 40)
    assert alike.high - alike.low > 1.6 * (independent[1] - independent[0])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_share_intervals_stay_in_bounds_and_contain_the_value(counts):
    estimate = share_estimate([c / 4 for c in counts], samples=4 * len(counts))
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


@pytest.mark.parametrize(("mean", "concentration"), [(0.5, 1.0), (0.1, 2.0), (0.9, 2.0)])
def test_share_intervals_cover_the_truth_when_samples_are_correlated(mean, concentration):
    """Beta-binomial prompts, 60 × 4 samples, 600 repetitions: 95 ± 3 %. Ignoring the clusters covers 70–90 %."""
    rng = np.random.default_rng(7)
    covered = naive = 0
    for _ in range(600):
        p = rng.beta(mean * concentration, (1 - mean) * concentration, 60)
        values = rng.binomial(4, p) / 4
        estimate = share_estimate(list(values), samples=240)
        covered += estimate.low <= mean <= estimate.high
        low, high = wilson(float(values.mean()), 240)
        naive += low <= mean <= high
    assert 0.92 <= covered / 600 <= 0.98
    assert naive / 600 < 0.9


def test_a_macro_mean_of_one_part_is_that_part():
    part = Estimate(0.9, 0.7, 0.96, 10)
    assert macro_estimate([part]).value == part.value
    assert macro_estimate([part]).low == pytest.approx(part.low)
    assert macro_estimate([part]).high == pytest.approx(part.high)


def test_macro_mean_adds_the_parts_variances():
    macro = macro_estimate([Estimate(0.2, 0.1, 0.4, 5), Estimate(0.8, 0.5, 0.9, 7)])
    assert (macro.value, macro.n) == (0.5, 12)
    assert 0.5 - macro.low == pytest.approx(math.hypot(0.1, 0.3) / 2)
    assert macro.high - 0.5 == pytest.approx(math.hypot(0.2, 0.1) / 2)


def test_exact_sign_flip_p_by_hand():
    """Differences 1, 1, 1: of eight sign patterns two reach |3|. With one −1 all reach |1|."""
    zeros = dict.fromkeys("abc", 0.0)
    change = paired_change(zeros, dict.fromkeys("abc", 1.0), address=(0,))
    assert change is not None
    assert (change.effect, change.p, change.n) == (1.0, 0.25, 3)
    mixed = paired_change(zeros, {"a": 1.0, "b": 1.0, "c": -1.0}, address=(0,))
    assert mixed is not None
    assert mixed.p == 1.0


def test_no_difference_is_no_evidence_but_has_a_width():
    same = {str(i): 0.5 for i in range(30)}
    change = paired_change(same, same, address=(0,))
    assert change is not None
    assert (change.effect, change.p, change.low, change.high) == (0.0, 1.0, -0.1, 0.1)


def test_swapping_the_evaluations_only_changes_the_sign():
    rng = random.Random(1)
    a = {str(i): rng.random() for i in range(50)}
    b = {str(i): rng.random() + 0.1 for i in range(50)}
    there = paired_change(a, b, address=(3, "x"), share=False)
    back = paired_change(b, a, address=(3, "x"), share=False)
    assert there is not None
    assert back is not None
    assert back.p == there.p
    assert (back.effect, back.low, back.high) == pytest.approx((-there.effect, -there.high, -there.low))


def test_only_common_prompts_are_compared():
    change = paired_change({"a": 0.0, "b": 0.0}, {"b": 1.0, "c": 1.0}, address=(0,))
    assert change is not None
    assert (change.n, change.effect) == (1, 1.0)
    assert paired_change({"a": 0.0}, {"b": 0.0}, address=(0,)) is None


def test_strata_weigh_the_same_whatever_their_size():
    before = dict.fromkeys("abcd", 0.0)
    after = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    change = paired_change(before, after, address=(0,), strata={"a": "x", "b": "y", "c": "y", "d": "y"})
    assert change is not None
    assert change.effect == 0.5


def test_the_paired_test_keeps_its_level_and_sees_an_effect():
    rng = np.random.default_rng(5)
    false_alarms = found = 0
    for i in range(80):
        base = rng.random(40)
        noise = rng.normal(0, 0.1, 40)
        before = {str(j): float(v) for j, v in enumerate(base)}
        null = {str(j): float(v) for j, v in enumerate(base + noise)}
        moved = {str(j): float(v) for j, v in enumerate(base + noise + 0.06)}
        null_change = paired_change(before, null, address=(i,), share=False)
        moved_change = paired_change(before, moved, address=(i,), share=False)
        assert null_change is not None
        assert moved_change is not None
        false_alarms += null_change.p < 0.05
        found += moved_change.p < 0.05
    assert false_alarms <= 11  # 4 expected; 11 is 3.6 standard errors off
    assert found >= 68


def test_sampled_p_agrees_with_enumeration():
    """Twelve equal differences are enumerated (2 / 4096); thirteen are sampled and must agree within noise."""
    thirteen = paired_change(
        {str(i): 0.0 for i in range(13)}, {str(i): 0.1 + i / 50 - 0.1 * (i % 3) for i in range(13)}, address=(1,)
    )
    values = [0.1 + i / 50 - 0.1 * (i % 3) for i in range(13)]
    patterns = (np.arange(2**13)[:, None] >> np.arange(13)) & 1
    exact = float(np.mean(np.abs((2 * patterns - 1) @ np.array(values)) >= abs(sum(values)) - 1e-12))
    assert thirteen is not None
    assert thirteen.p == pytest.approx(exact, abs=0.012)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
