"""Learning-rate schedules: pure functions from a step to a multiplier of the base rate, 0 < m ≤ 1.

``step`` counts from 0 to ``total`` - 1 and is clamped to that range; ``warmup`` is a share of ``total`` during which
the multiplier rises linearly to 1 (its first step is never 0); ``floor`` is the multiplier that the end approaches.
"""

from __future__ import annotations

import math


def constant(step: int, *, total: int, warmup: float = 0.0) -> float:
    """1 after the warm-up."""
    return _warmup(step, total, warmup)[0]


def cosine(step: int, *, total: int, warmup: float = 0.05, floor: float = 0.1) -> float:
    """``floor + (1 - floor)·(1 + cos πx)/2`` with x from 0 at the end of the warm-up to 1 at ``total``."""
    rise, x = _warmup(step, total, warmup)
    return rise * (_checked(floor) + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)


def linear(step: int, *, total: int, warmup: float = 0.05, floor: float = 0.2) -> float:
    """``1 - (1 - floor)·x`` with x from 0 at the end of the warm-up to 1 at ``total``."""
    rise, x = _warmup(step, total, warmup)
    return rise * (1 - (1 - _checked(floor)) * x)


def _warmup(step: int, total: int, warmup: float) -> tuple[float, float]:
    """(multiplier of the warm-up, share of the rest that is done)."""
    if total < 1:
        raise ValueError(f"total must be at least 1 step, got {total}")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is a share of all steps in [0, 1), got {warmup}")
    step = min(max(step, 0), total - 1)
    rising = round(total * warmup)
    if step < rising:
        return (step + 1) / rising, 0.0
    return 1.0, (step - rising) / (total - rising)


def _checked(floor: float) -> float:
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must lie in [0, 1], got {floor}")
    return floor
