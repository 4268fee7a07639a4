"""Whether something changed while a stage trained, at equal difficulty.

A curriculum makes tasks harder as the policy gets better, so plain means over steps say little. Here early and late
groups are compared within cells (family and level), cells weighted by what they can tell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from components.evaluation.doctor.groups import GroupView, Pull

MIN_STEPS = 12  # of a stretch, before anything is said of a trend
MIN_GROUPS = 12  # in each window
MIN_WEIGHT = 4.0  # Σ nₑ·nₗ/(nₑ+nₗ) over cells
CERTAIN = 4.0  # standard errors: a run is looked at dozens of times, and steps are not independent

Value = Callable[[GroupView], float | None]


@dataclass(frozen=True, slots=True)
class Change:
    """Mean of late minus early groups at equal difficulty, its standard error, and both levels."""

    effect: float
    error: float
    early: float
    late: float

    @property
    def z(self) -> float:
        if self.error > 0:
            return self.effect / self.error
        return math.copysign(math.inf, self.effect) if abs(self.effect) > 1e-9 else 0.0

    @property
    def low(self) -> float:
        return self.effect - 2 * self.error

    @property
    def high(self) -> float:
        return self.effect + 2 * self.error

    def text(self, digits: int = 2) -> str:
        """ "0.31 → 0.55"."""
        return f"{self.early:.{digits}f} → {self.late:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Groups of one kind over steps in which the reward had the same terms, in thirds."""

    kind: str
    early: Sequence[GroupView]
    middle: Sequence[GroupView]
    late: Sequence[GroupView]

    @property
    def groups(self) -> list[GroupView]:
        return [*self.early, *self.middle, *self.late]

    @property
    def step(self) -> int:
        return max(view.step for view in self.late)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a rollout is of this kind of task."""
        return row.get("kind", self.kind) == self.kind

    @property
    def deviation(self) -> float:
        """Standard deviation of the reward over all rollouts: the scale on which gains are judged."""
        mean = fmean(view.reward for view in self.groups)
        return math.sqrt(fmean(view.variance + (view.reward - mean) ** 2 for view in self.groups))

    def change(self, value: Value) -> Change | None:
        """From the first third to the last."""
        return change(self.early, self.late, value)


def stretches(groups: Sequence[GroupView]) -> Iterator[Stretch]:
    """Per kind of task, the stretches in which the reward had the same terms and that are long enough to judge."""
    by_kind: dict[str, dict[int, list[GroupView]]] = defaultdict(lambda: defaultdict(list))
    for view in groups:
        if view.scored:
            by_kind[view.kind][view.step].append(view)
    for kind, steps in by_kind.items():
        runs: list[tuple[frozenset[str], list[int]]] = []
        for step in sorted(steps):
            names = frozenset(name for view in steps[step] for name in view.terms)
            if not runs or runs[-1][0] != names:
                runs.append((names, []))
            runs[-1][1].append(step)
        for _, numbers in runs:
            if len(numbers) >= MIN_STEPS:
                third = len(numbers) // 3
                parts = numbers[:third], numbers[third:-third], numbers[-third:]
                yield Stretch(kind, *([view for step in part for view in steps[step]] for part in parts))


def change(early: Sequence[GroupView], late: Sequence[GroupView], value: Value) -> Change | None:
    """Late minus early within cells, pooled: d = Σ wᵢdᵢ / Σ wᵢ with wᵢ = nₑnₗ/(nₑ+nₗ), var d = s² / Σ wᵢ.

    s² is the pooled variance between groups within a cell and a window. ``early`` and ``late`` of the result are
    averages over the same cells, with the same weights.

    Returns:
        None where the windows have too little in common.
    """
    cells: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for side, views in enumerate((early, late)):
        for view in views:
            if (number := value(view)) is not None:
                cells[view.cell][side].append(number)
    both = [pair for pair in cells.values() if pair[0] and pair[1]]
    counts = [sum(len(pair[side]) for pair in both) for side in (0, 1)]
    if min(counts, default=0) < MIN_GROUPS:
        return None
    weights = [len(a) * len(b) / (len(a) + len(b)) for a, b in both]
    freedom = sum(len(a) + len(b) - 2 for a, b in both)
    if (total := sum(weights)) < MIN_WEIGHT or freedom < MIN_GROUPS:
        return None
    means = [(fmean(a), fmean(b)) for a, b in both]
    squares = sum(
        sum((x - mean) ** 2 for x in values)
        for pair, centre in zip(both, means, strict=True)
        for values, mean in zip(pair, centre, strict=True)
    )
    before = sum(w * a for w, (a, _) in zip(weights, means, strict=True)) / total
    after = sum(w * b for w, (_, b) in zip(weights, means, strict=True)) / total
    return Change(after - before, math.sqrt(squares / freedom / total), before, after)


def slope(pulls: Sequence[Pull]) -> tuple[float, float]:
    """Least squares of y on x from pooled sums: (slope, its z); (0, 0) where x never varies."""
    whole = sum(pulls, Pull())
    if whole.xx <= 1e-12 or whole.dof < MIN_GROUPS:
        return 0.0, 0.0
    b = whole.xy / whole.xx
    residual = max(whole.yy - b * whole.xy, 0.0) / max(whole.dof - 1, 1)
    error = math.sqrt(residual / whole.xx)
    return b, b / error if error > 0 else math.copysign(math.inf, b) if abs(b) > 1e-12 else 0.0


def mean_z(values: Sequence[float]) -> tuple[float, float]:
    """(mean, mean / its standard error)."""
    if len(values) < 2:
        return (values[0] if values else 0.0), 0.0
    mean = fmean(values)
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return mean, mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0


def column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Values of a metric in step order, where it was logged and is finite."""
    found = [row[name] for row in rows if isinstance(row.get(name), (int, float))]
    return [float(value) for value in found if math.isfinite(value)]


def no_better(truth: Change | None) -> bool:
    """Whether accuracy at equal difficulty surely did not rise by more than five points, and had room to."""
    return truth is not None and truth.high < 0.05 and truth.late < 0.95
