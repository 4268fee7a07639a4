"""95 % intervals and paired tests for evaluations in which each prompt is sampled several times.

The prompt is the unit of sampling: samples of one prompt resemble each other, so treating them as independent makes
intervals too narrow. Everything here takes one number per prompt, the mean over its samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np

from components.rng import derive

_Z = NormalDist().inv_cdf(0.975)
_EXACT_BELOW = 13  # 2^12 sign patterns are enumerated, more are sampled
_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; ``n`` counts prompts."""

    value: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Change:
    """Mean paired difference "after − before" over ``n`` common prompts, its 95 % interval and two-sided p-value."""

    effect: float
    low: float
    high: float
    p: float
    n: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def t_quantile(df: int) -> float:
    """97.5 % quantile of Student's t, to 0.004.

    Exact for df ≤ 2, the Cornish–Fisher expansion in 1/df above (Abramowitz & Stegun 26.7.5).
    """
    if df < 1:
        return math.inf
    if df == 1:
        return math.tan(math.pi * 0.475)
    if df == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * df**4)
    )


def wilson(share: float, n: float, z: float = _Z) -> tuple[float, float]:
    """Wilson's score interval for a share seen in n independent trials (n may be an effective, fractional number)."""
    if n <= 0:
        return 0.0, 1.0
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def share_estimate(values: Sequence[float], samples: int) -> Estimate:
    """Mean of per-prompt shares in [0, 1], with a Wilson interval on the effective number of trials.

    n_eff = p(1-p) / (s²/n): what the spread between prompts is worth in independent trials, at most ``samples`` (all
    samples independent). Without spread at p = 0 or 1 it is the number of prompts (all samples of a prompt alike), so
    that "0 of 20" keeps an upper bound. The t quantile replaces z because s² is estimated.

    Source: Korn & Graubard 1998; Dean & Pagano 2015, "Evaluating confidence interval methods for binomial
    proportions in clustered surveys".
    """
    n = len(values)
    mean = float(np.mean(values))
    variance = float(np.var(values, ddof=1)) / n if n > 1 else 0.0
    if mean in (0.0, 1.0):
        trials = float(n)
    else:
        trials = min(mean * (1 - mean) / variance, samples) if variance > 0 else float(samples)
    # One prompt has no spread to estimate from: its samples are all there is.
    low, high = wilson(mean, trials, t_quantile(n - 1) if n > 1 else _Z)
    return Estimate(mean, min(low, mean), max(high, mean), n)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Mean of per-prompt values of any scale, with Student's t interval over prompts."""
    n = len(values)
    mean = float(np.mean(values))
    half = t_quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    return Estimate(mean, mean - half, mean + half, n)


def macro_estimate(parts: Sequence[Estimate]) -> Estimate:
    """Equally weighted mean of independent estimates; limits by recovering each part's variance from its own interval.

    low = θ - √Σ(wᵢ(θᵢ - lᵢ))², high likewise: keeps the asymmetry that shares near 0 and 1 have.

    Source: Zou & Donner 2008 (MOVER).
    """
    weight = 1 / len(parts)
    value = weight * sum(part.value for part in parts)
    low = value - weight * math.sqrt(sum((part.value - part.low) ** 2 for part in parts))
    high = value + weight * math.sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Estimate(value, low, high, sum(part.n for part in parts))


def paired_change(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    address: tuple[int | str, ...],
    strata: Mapping[str, str] | None = None,
    share: bool = True,
) -> Change | None:
    """Compare two evaluations on the prompts they share.

    Effect: mean of the per-prompt differences (with ``strata``, prompt → stratum: the equally weighted mean of the
    strata's means). Interval: Student's t on the differences. p: sign-flip permutation test, two-sided – exact up to
    12 differing prompts, else 20,000 draws counted as (hits + 1) / (draws + 1), Phipson & Smyth 2010.

    Args:
        before, after: prompt id → value.
        address: seeds the draws; the same address gives the same p in every process. Swapping the two evaluations
            changes the sign of the effect and nothing else.
        share: values lie in [0, 1]. Then differences that are all alike still get a width: the rule of three.

    Returns:
        None if no prompt is common to both.
    """
    common = sorted(before.keys() & after.keys())
    if not common:
        return None
    groups: dict[str, list[float]] = {}
    for prompt in common:
        groups.setdefault(strata[prompt] if strata else "", []).append(after[prompt] - before[prompt])
    parts = [_difference(values, share) for values in groups.values()]
    change = macro_estimate(parts)
    weighted = np.concatenate([np.asarray(values) / (len(values) * len(groups)) for values in groups.values()])
    return Change(change.value, change.low, change.high, _sign_flip_p(weighted, address), len(common))


def _difference(values: Sequence[float], share: bool) -> Estimate:
    estimate = mean_estimate(values)
    if not share:
        return estimate
    if estimate.low == estimate.high:
        half = 3 / len(values)
        estimate = Estimate(estimate.value, estimate.value - half, estimate.value + half, estimate.n)
    return Estimate(estimate.value, max(-1.0, estimate.low), min(1.0, estimate.high), estimate.n)


def _sign_flip_p(weighted: np.ndarray, address: tuple[int | str, ...]) -> float:
    """P(|Σ ±wᵢdᵢ| ≥ |Σ wᵢdᵢ|) under random signs; prompts without a difference do not matter."""
    moved = np.abs(weighted[np.abs(weighted) > 1e-12])
    observed = abs(float(weighted.sum())) - 1e-12
    if len(moved) < _EXACT_BELOW:
        patterns = (np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ moved) >= observed)) if len(moved) else 1.0
    rng = np.random.default_rng(derive(*address, "sign-flip"))
    hits = 0
    for _ in range(10):
        signs = 2 * rng.integers(0, 2, (_DRAWS // 10, len(moved)), dtype=np.int8) - 1
        hits += int(np.sum(np.abs(signs @ moved) >= observed))
    return (hits + 1) / (_DRAWS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the chance of any false alarm among these tests stays below the level."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
