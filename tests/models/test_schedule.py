"""Schedules at hand-computed points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.models.schedule import constant, cosine, linear


def test_cosine_rises_linearly_then_falls_to_the_floor():
    at = [cosine(step, total=12, warmup=0.17, floor=0.1) for step in range(12)]  # 2 steps of warm-up, 10 of decay
    assert at[:3] == [0.5, 1.0, 1.0]
    assert at[7] == pytest.approx(0.55)  # half-way: (1 + 0.1) / 2
    assert at[11] == pytest.approx(0.1 + 0.9 * 0.024471741852423234)  # (1 + cos 0.9π) / 2
    assert at[2:] == sorted(at[2:], reverse=True)


def test_linear_falls_evenly():
    assert [linear(s, total=4, warmup=0.0, floor=0.2) for s in range(4)] == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_constant_stays():
    assert [constant(s, total=4, warmup=0.5) for s in range(4)] == [0.5, 1.0, 1.0, 1.0]


@given(st.integers(1, 500), st.floats(0, 0.9), st.floats(0, 1), st.integers(-3, 600))
def test_every_multiplier_is_usable(total, warmup, floor, step):
    for value in (cosine(step, total=total, warmup=warmup, floor=floor), linear(step, total=total, warmup=warmup)):
        assert 0 < value <= 1 + 1e-12


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"total": 0}, "total must be at least 1 step, got 0"),
        ({"total": 5, "warmup": 1.0}, r"share of all steps in \[0, 1\), got 1.0"),
        ({"total": 5, "floor": 1.5}, r"floor must lie in \[0, 1\], got 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        cosine(0, **wrong)
