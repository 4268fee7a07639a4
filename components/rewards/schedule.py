"""How much a term counts at a point of training, and its z-scores over a step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

_EPSILON = 1e-4  # as in the advantages: a spread this small is rounding, not signal


def is_active(span: Sequence[float] | None, progress: float) -> bool:
    """Whether ``progress`` lies in [from, to); always without a span."""
    return span is None or span[0] <= progress < span[1]


def factor(points: Sequence[Sequence[float]], progress: float) -> float:
    """Linear interpolation of points (progress, factor), constant before the first and after the last.

    >>> factor([[0.5, 0.0], [0.9, 1.0]], 0.7)
    0.5
    """
    before = [point for point in points if point[0] <= progress]
    after = [point for point in points if point[0] > progress]
    if not before or not after:
        return float((after[0] if not before else before[-1])[1])
    (x0, y0), (x1, y1) = before[-1], after[0]
    return y0 + (y1 - y0) * (progress - x0) / (x1 - x0)


def standardised(values: Sequence[Sequence[float | None]], *, per_group: bool) -> list[list[float | None]]:
    """(x − mean) / (s + 1e-4) per group or over all groups, s with Bessel's correction; None where there is no value.

    Values that all agree, or a single one, give 0.
    """
    if per_group:
        return [_standardised(group) for group in values]
    flat = iter(_standardised([value for group in values for value in group]))
    return [[next(flat) for _ in group] for group in values]


def _standardised(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    if len(known) < 2 or max(known) == min(known):
        return [None if value is None else 0.0 for value in values]
    mean = fmean(known)
    spread = (sum((value - mean) ** 2 for value in known) / (len(known) - 1)) ** 0.5
    return [None if value is None else (value - mean) / (spread + _EPSILON) for value in values]
