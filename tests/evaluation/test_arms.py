"""Arms over seeds against figures worked out by hand, and Student's t against scipy where it is installed."""

import math

import pytest

from components.evaluation.arms import dominates, front_odds, over_seeds, paired_by_seed, pareto, t_two_sided


@pytest.mark.parametrize(
    ("t", "df", "p"),
    [
        (1.0, 1, 0.5),  # Cauchy: 1 - 2/π·atan(1)
        (math.sqrt(2), 2, 1 - math.sqrt(2) / 2),  # t/√(2 + t²) = 1/√2
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (2.776, 4, 0.05),
        (2.571, 5, 0.05),
        (0.0, 7, 1.0),
    ],
)
def test_students_t_has_the_values_of_the_tables(t, df, p):
    assert t_two_sided(t, df) == pytest.approx(p, abs=5e-5)
    assert t_two_sided(-t, df) == t_two_sided(t, df)


def test_students_t_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    for df in range(1, 40):
        for t in (0.1, 0.7, 2.2, 9.0):
            assert t_two_sided(t, df) == pytest.approx(2 * stats.t.sf(t, df), abs=1e-12)


def test_the_change_is_over_the_seeds_that_both_have():
    before, after = {0: 0.30, 1: 0.20, 2: 0.40, 3: 0.9}, {0: 0.50, 1: 0.42, 2: 0.58, 7: 0.1}
    change = paired_by_seed(before, after)
    assert change is not None and change.n == 3
    assert change.effect == pytest.approx(0.2)  # .20, .22, .18: standard deviation .02
    assert change.high - change.effect == pytest.approx(4.303 * 0.02 / math.sqrt(3), rel=1e-3)
    t = 0.2 / (0.02 / math.sqrt(3))
    assert change.p == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)  # two degrees of freedom in closed form
    assert paired_by_seed(before, {0: 0.5}) is None


def test_equal_differences_are_no_proof_beyond_what_so_few_seeds_can_give():
    change = paired_by_seed({0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.2, 1: 0.3, 2: 0.4})
    assert change is not None and change.p == 0.25  # 2^(1-3)
    same = paired_by_seed({0: 0.1, 1: 0.2}, {0: 0.1, 1: 0.2})
    assert same is not None and same.p == 1.0


def test_a_share_keeps_inside_its_bounds():
    found = over_seeds({0: 0.99, 1: 0.90}, share=True)
    assert found.high == 1.0
    assert over_seeds({0: 0.99, 1: 0.90}, share=False).high > 1


def test_an_arm_is_dominated_by_one_that_is_nowhere_worse():
    assert dominates((1, 2), (1, 1))
    assert not dominates((1, 1), (1, 1))
    assert not dominates((2, 0), (1, 1))
    assert pareto({"a": (1, 3), "b": (2, 2), "c": (1, 2), "d": (3, 1)}) == {"a": [], "b": [], "c": ["a", "b"], "d": []}


def seeds(*values):
    return dict(enumerate(values))


def test_odds_are_certain_where_the_seeds_agree_and_even_where_they_cannot_tell():
    noise = (0.1, -0.1, 0.05)
    arms = {
        # Whatever a seed does it does to both: b is better by .01 in every one, so a is hardly ever on the front.
        "a": [seeds(*(0.5 + x for x in noise)), seeds(1.0, 1.0, 1.0)],
        "b": [seeds(*(0.51 + x for x in noise)), seeds(1.0, 1.0, 1.0)],
    }
    odds = front_odds(arms, {}, address=(0,))
    assert odds == {"a": 0.0, "b": 1.0}
    arms = {"a": [seeds(0.4, 0.6), seeds(1.0, 1.0)], "b": [seeds(0.6, 0.4), seeds(1.0, 1.0)]}
    odds = front_odds(arms, {}, address=(0,))
    assert odds["a"] == pytest.approx(0.5, abs=0.03)  # 4,000 draws: standard deviation .008
    assert odds["a"] + odds["b"] == pytest.approx(1.0)


def test_odds_of_two_arms_are_the_one_sided_p_of_the_paired_test():
    a, b = seeds(0.50, 0.42, 0.58), seeds(0.52, 0.45, 0.57)
    change = paired_by_seed(a, b)
    assert change is not None
    flat = seeds(1.0, 1.0, 1.0)
    odds = front_odds({"a": [a, flat], "b": [b, flat]}, {}, address=("x",), draws=20_000)
    assert odds["a"] == pytest.approx(change.p / 2, abs=0.012)  # 20,000 draws, and four standard deviations


def test_with_one_seed_the_spread_is_that_over_prompts():
    arms = {"a": [seeds(0.5), seeds(1.0)], "b": [seeds(0.6), seeds(1.0)]}
    odds = front_odds(arms, {"a": [0.1, 0.0], "b": [0.1, 0.0]}, address=(1,), draws=20_000)
    # b beats a with Φ(.1 / (.1·√2)) = .760; an arm stays on the front if it is not beaten
    assert odds["b"] == pytest.approx(0.760, abs=0.015)
    assert odds["a"] == pytest.approx(0.240, abs=0.015)
