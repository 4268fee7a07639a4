"""Arms of a sweep against each other: intervals over seeds, tests paired by seed, and Pareto fronts with their odds.

A seed is the unit of sampling: two prompts of one run share its luck in training. An arm is ``{seed: value}`` per
metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from components.evaluation.intervals import Change, Estimate, mean_estimate
from components.rng import derive

BySeed = Mapping[Any, float]
DRAWS = 4000


def t_two_sided(t: float, df: int) -> float:
    """P(|T| ≥ |t|) for Student's t with a whole number of degrees of freedom.

    Source: Abramowitz & Stegun 26.7.3 (odd) and 26.7.4 (even), finite sums.
    """
    if df < 1:
        return 1.0
    angle = math.atan(abs(t) / math.sqrt(df))
    cos2 = math.cos(angle) ** 2
    term = total = 1.0 if df % 2 == 0 else math.cos(angle)
    for k in range(1 + df % 2, df - 1, 2):
        term *= cos2 * k / (k + 1)
        total += term
    if df % 2 == 0:
        inside = math.sin(angle) * total
    else:
        inside = 2 / math.pi * (angle + (math.sin(angle) * total if df > 1 else 0.0))
    return min(1.0, max(0.0, 1 - inside))


def over_seeds(values: BySeed, *, share: bool) -> Estimate:
    """Mean over seeds with Student's t interval; that of a share ends at 0 and 1."""
    found = mean_estimate(list(values.values()))
    if not share:
        return found
    return Estimate(found.value, max(found.low, 0.0), min(found.high, 1.0), found.n)


def paired_by_seed(before: BySeed, after: BySeed) -> Change | None:
    """Mean difference over the seeds both have, Student's t interval and two-sided p; None with fewer than two.

    Without any spread t is infinite; p is then the sign test's 2^(1-n), the least that n seeds can show.
    """
    common = sorted(before.keys() & after.keys())
    if len(common) < 2:
        return None
    differences = [after[seed] - before[seed] for seed in common]
    found = mean_estimate(differences)
    n, half = len(common), found.high - found.value
    if max(differences) - min(differences) < 1e-12:
        p = 2.0 ** (1 - n) if abs(found.value) > 1e-12 else 1.0
    else:
        p = t_two_sided(found.value / float(np.std(differences, ddof=1)) * math.sqrt(n), n - 1)
    return Change(found.value, found.value - half, found.value + half, p, n)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether ``one`` is nowhere worse and somewhere better; more is better in every coordinate."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and any(a > b for a, b in zip(one, other, strict=True))


def pareto(points: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    """For each arm the arms that dominate it; none for those on the front."""
    return {name: [o for o, q in points.items() if o != name and dominates(q, point)] for name, point in points.items()}


def front_odds(
    arms: Mapping[str, Sequence[BySeed]],
    errors: Mapping[str, Sequence[float]],
    *,
    address: tuple[int | str, ...],
    draws: int = DRAWS,
) -> dict[str, float]:
    """How often each arm is on the front, if the means are drawn from what the seeds say of them.

    With two or more seeds common to all arms: the multivariate t posterior of the means under a flat prior,
    x̄ + Σᵢ gᵢ(xᵢ − x̄) / √(n(n−1)) / √(χ²ₙ₋₁/(n−1)), gᵢ standard normal, the same for every arm and metric of a draw, so
    that what seeds do to all arms alike cancels. Its margins are Student's intervals. With one seed: independent
    normals whose spread is that over prompts, which says nothing of other seeds.

    Args:
        arms: arm → a ``{seed: value}`` per metric, more is better.
        errors: arm → standard error over prompts per metric; used where there is only one seed.
        address: seeds the draws.
    """
    common = sorted(set.intersection(*(set(metric) for metrics in arms.values() for metric in metrics)))
    rng = np.random.default_rng(derive(*address, "pareto"))
    n = len(common)
    if n > 1:
        values = np.array([[[metric[seed] for seed in common] for metric in metrics] for metrics in arms.values()])
        centre = values.mean(axis=2)
        g = rng.standard_normal((draws, n)) / math.sqrt(n * (n - 1))
        scale = np.sqrt(rng.chisquare(n - 1, draws) / (n - 1))[:, None, None]
        drawn = centre + np.einsum("ams,ds->dam", values - centre[:, :, None], g) / scale
    else:
        centre = np.array([[np.mean(list(metric.values())) for metric in metrics] for metrics in arms.values()])
        spread = np.array([list(errors[name]) for name in arms])
        drawn = centre + spread * rng.standard_normal((draws, *centre.shape))
    better = (drawn[:, :, None] >= drawn[:, None]).all(-1) & (drawn[:, :, None] > drawn[:, None]).any(-1)  # [d, i, j]
    on_front = ~np.asarray(better).max(axis=1)
    return {name: float(share) for name, share in zip(arms, on_front.mean(axis=0), strict=True)}
