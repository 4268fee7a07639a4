"""Small charts as inline SVG. Colours are classes, so that the page's theme decides; all text is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

_WIDTH, _HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 10, 10, 24


@dataclass(frozen=True)
class Series:
    """One line. ``low`` and ``high`` give each point a whisker; ``raw`` is drawn faintly behind the line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    raw: Sequence[float] | None = None
    colour: int = 0


def smooth(values: Sequence[float]) -> list[float]:
    """Centred moving mean over about a tenth of the points: what a noisy curve does, without shifting it in time."""
    half = len(values) // 20
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    share: bool = False,
    x_label: str = "step",
    whole_x: bool = True,
) -> Markup:
    """A figure with a title, a legend where there is more than one line, and axes with about four ticks.

    Args:
        share: values are shares in [0, 1], shown as percentages on a full axis.
    """
    series = [s for s in series if len(s.x)]
    if not series:
        return Markup("")
    xs = [x for s in series for x in s.x]
    shown = [v for s in series for v in (*s.y, *(s.low or ()), *(s.high or ()), *(s.raw or ()))]
    x_axis = _Axis(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, whole=whole_x, tight=True)
    low, high = (0.0, 1.0) if share else (min(shown), max(shown))
    y_axis = _Axis(low, high, _HEIGHT - _BOTTOM, _TOP, share=share)
    parts = [_grid(x_axis, y_axis)]
    parts += [_line(s, x_axis, y_axis) for s in series]
    label = f'<text class="axis" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 1}" text-anchor="end">{escape(x_label)}</text>'
    hover = {
        "x": [round(x_axis.at(x), 1) for x in series[0].x],
        "label": [f"{x_label} {x:g}" for x in series[0].x],
        "series": [
            {"name": s.name, "c": s.colour, "y": [y_axis.text(v, fine=True) for v in s.y]}
            for s in series
            if list(s.x) == list(series[0].x)
        ],
    }
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        f'{"".join(parts)}{label}<line class="cross" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/></svg>'
    )
    legend = "".join(f'<span><i class="b{s.colour}"></i>{escape(s.name)}</span>' for s in series)
    told = escape(json.dumps(hover), quote=True)
    return Markup(  # every name in it was escaped above
        f'<figure class="chart" data-hover="{told}"><figcaption>{escape(title)}</figcaption>'
        f'{svg}<div class="legend">{legend if len(series) > 1 else ""}</div></figure>'
    )


@dataclass(frozen=True)
class _Axis:
    """Maps values to pixels and knows its ticks."""

    low: float
    high: float
    start: float
    end: float
    share: bool = False
    whole: bool = False
    tight: bool = False

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
        if self.tight or self.share:
            return self.low, self.high
        step = self.step()
        return math.floor(self.low / step + 1e-9) * step, math.ceil(self.high / step - 1e-9) * step

    def at(self, value: float) -> float:
        low, high = self.bounds()
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.low == self.high:
            return [self.low]
        (low, high), step = self.bounds(), self.step()
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]

    def text(self, value: float, fine: bool = False) -> str:
        if self.share:
            return f"{100 * value:.1f} %" if fine else f"{100 * value:.0f}%"
        if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
            return f"{value:.1e}"
        return f"{value:.4g}"


def _grid(x_axis: _Axis, y_axis: _Axis) -> str:
    parts = []
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="axis" x="{_LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{y_axis.text(tick)}</text>'
        )
    last = _WIDTH - _RIGHT - 34  # the axis' name stands there
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        if x < last:
            parts.append(f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{tick:g}</text>')
    return "".join(parts)


def _path(x: Sequence[float], y: Sequence[float], x_axis: _Axis, y_axis: _Axis) -> str:
    points = [f"{x_axis.at(a):.1f},{y_axis.at(b):.1f}" for a, b in zip(x, y, strict=True)]
    return "M" + "L".join(points)


def _line(s: Series, x_axis: _Axis, y_axis: _Axis) -> str:
    parts = []
    if s.raw is not None:
        parts.append(f'<path class="raw s{s.colour}" d="{_path(s.x, s.raw, x_axis, y_axis)}"/>')
    parts.append(f'<path class="line s{s.colour}" d="{_path(s.x, s.y, x_axis, y_axis)}"/>')
    if s.low is not None and s.high is not None:
        for x, low, high in zip(s.x, s.low, s.high, strict=True):
            at = x_axis.at(x)
            parts.append(
                f'<line class="whisker s{s.colour}" x1="{at:.1f}" x2="{at:.1f}" '
                f'y1="{y_axis.at(low):.1f}" y2="{y_axis.at(high):.1f}"/>'
            )
    if len(s.x) <= 12:
        dots = (
            f'<circle class="f{s.colour}" cx="{x_axis.at(a):.1f}" cy="{y_axis.at(b):.1f}" r="2.6"/>'
            for a, b in zip(s.x, s.y, strict=True)
        )
        parts += dots
    return "".join(parts)
