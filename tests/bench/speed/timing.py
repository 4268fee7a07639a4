"""Paired timings: the things compared run in turns, in one process, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: what was measured; the key by which runs are compared.
        value: the figure itself, mostly a ratio, because machines differ.
        unit: of the value.
        better: "higher", "lower" or "" (told, not judged).
        must: what the value has to reach, where something has been promised.
        detail: absolute numbers behind it.
    """

    name: str
    value: float
    unit: str = "×"
    better: str = "higher"
    must: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        if self.must is None:
            return None
        return self.value <= self.must if self.better == "lower" else self.value >= self.must


def rates(ways: Mapping[str, Callable[[], int]], repeats: int, *, warm: bool = True) -> dict[str, list[float]]:
    """Units (tokens) per CPU-second of each way, in turns; with ``warm`` a first round is not counted.

    CPU-seconds of this process, which has one thread: what others do on the machine costs cache, not turns.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + warm):
        for name, run in ways.items():
            began = process_time()
            units = run()
            spent = process_time() - began
            if number >= warm:
                found[name].append(units / spent)
    return found


def ratio(found: Mapping[str, list[float]], ours: str, theirs: str) -> float:
    """Median over the repetitions of ours / theirs."""
    return median(a / b for a, b in zip(found[ours], found[theirs], strict=True))


def spread(found: Mapping[str, list[float]], ours: str, theirs: str) -> list[float]:
    """Smallest and largest of the ratios."""
    ratios = [a / b for a, b in zip(found[ours], found[theirs], strict=True)]
    return [round(min(ratios), 2), round(max(ratios), 2)]
