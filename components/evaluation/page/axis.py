"""One axis of a chart: from values to pixels, and its ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels and knows its ticks.

    Attributes:
        share: values are shares; ticks read as percentages, and the axis is not widened to whole ticks.
        whole: ticks are whole numbers.
        tight: the axis spans the values themselves, not whole ticks around them.
        doubling: equal distances are equal ratios; ticks are powers of two. Values are positive.
    """

    low: float
    high: float
    start: float
    end: float
    share: bool = False
    whole: bool = False
    tight: bool = False
    doubling: bool = False

    def step(self) -> float:
        """Distance of ticks: 1, 2, 2.5 or 5 times a power of ten, for about four of them."""
        span = self.high - self.low
        power = 10 ** math.floor(math.log10(span / 4))
        step = power * next(m for m in (1, 2, 2.5, 5, 10, 20) if span / (power * m) <= 4.5)
        return max(1, round(step)) if self.whole else step

    def bounds(self) -> tuple[float, float]:
        """What the axis spans: the values themselves, or whole ticks around them."""
        if self.low == self.high:
            pad = abs(self.low) * 0.1 or 1.0
            return self.low - pad, self.high + pad
        if self.tight or self.share or self.doubling:
            return self.low, self.high
        step = self.step()
        return math.floor(self.low / step + 1e-9) * step, math.ceil(self.high / step - 1e-9) * step

    def at(self, value: float) -> float:
        """Pixel of a value."""
        low, high = self.bounds()
        if self.doubling and low > 0:
            low, high, value = math.log2(low), math.log2(high), math.log2(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.low == self.high:
            return [self.low]
        if self.doubling:
            powers = (2.0**i for i in range(math.floor(math.log2(self.low)), math.ceil(math.log2(self.high)) + 1))
            return [power for power in powers if self.low <= power <= self.high]
        (low, high), step = self.bounds(), self.step()
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]

    def text(self, value: float, fine: bool = False) -> str:
        """The value as it reads beside a tick, or with more digits on hover."""
        if self.share:
            return f"{100 * value:.1f} %" if fine else f"{100 * value:.0f}%"
        if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
            return f"{value:.1e}"
        return f"{value:.4g}"

    def lines_across(self, left: float, right: float) -> list[str]:
        """SVG of the ticks of an upright axis: a line across the chart, and its value beside it."""
        parts = []
        for tick in self.ticks():
            y = self.at(tick)
            parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(
                f'<text class="axis" x="{left - 5}" y="{y + 3.5:.1f}" text-anchor="end">{self.text(tick)}</text>'
            )
        return parts
