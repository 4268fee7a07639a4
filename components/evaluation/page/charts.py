"""Small charts as inline SVG. Colours are classes, so that the page's theme decides; all text is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
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
        f'{"".join(parts)}{label}<line class="cross" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" x1="-9" x2="-9"/></svg>'
    )
    legend = "".join(f'<span><i class="b{s.colour}"></i>{escape(s.name)}</span>' for s in series)
    return Markup(  # every name in it was escaped above
        f'<figure class="chart" data-hover="{escape(json.dumps(hover), quote=True)}"><figcaption>{escape(title)}</figcaption>'
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

    def bounds(self) -> tuple[float, float]:
        if self.low == self.high:
            pad = abs(self.low) * 0.1 or 1.0
            return self.low - pad, self.high + pad
        if self.tight or self.share:
            return self.low, self.high
        ticks = self.ticks()
        step = ticks[1] - ticks[0] if len(ticks) > 1 else self.high - self.low
        return math.floor(self.low / step + 1e-9) * step, math.ceil(self.high / step - 1e-9) * step

    def at(self, value: float) -> float:
        low, high = self.bounds()
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        step = 10 ** math.floor(math.log10(span / 4))
        step *= next(m for m in (1, 2, 2.5, 5, 10, 20) if span / (step * m) <= 4.5)
        if self.whole:
            step = max(1, round(step))
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

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


def heat_map(cells: Mapping[str, Sequence[tuple[float, int] | None]], x_ticks: Sequence[str], *, title: str) -> Markup:
    """Rows × columns of shares; None where there is nothing. A cell is (share, count), told on hover."""
    if not cells:
        return Markup("")
    label = min(130, 12 + 6 * max(map(len, cells)))
    columns, size = len(x_ticks), 15
    width = (_WIDTH - label) / max(1, columns)
    height = len(cells) * size + 20
    parts = []
    for r, (name, row) in enumerate(cells.items()):
        parts.append(
            f'<text class="axis" x="{label - 5}" y="{r * size + 11}" text-anchor="end">{escape(name[-20:])}</text>'
        )
        for c, cell in enumerate(row):
            x = label + c * width
            if cell is not None:
                share, count = cell
                tip = escape(f"{name}, {x_ticks[c]}: {share:.0%} of {count}")
                parts.append(
                    f'<rect class="heat" x="{x:.1f}" y="{r * size}" width="{width - 1:.1f}" height="{size - 1}" '
                    f'rx="2" style="--v:{share:.3f}"><title>{tip}</title></rect>'
                )
    for c in (0, columns - 1):
        anchor = "start" if c == 0 else "end"
        x = label if c == 0 else _WIDTH
        parts.append(f'<text class="axis" x="{x}" y="{height - 5}" text-anchor="{anchor}">{escape(x_ticks[c])}</text>')
    return Markup(
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg></figure>'
    )


def plane(points: Sequence[tuple[str, float, float]], *, title: str, x_label: str, y_label: str) -> Markup:
    """Named points in the unit square, joined in order: both of two rates at once."""
    if not points:
        return Markup("")
    side = 250
    x_axis, y_axis = _Axis(0, 1, 40, side, share=True), _Axis(0, 1, side - 30, 10, share=True)
    parts = [
        f'<rect class="goal" x="{x_axis.at(0.9):.1f}" y="10" width="{side - x_axis.at(0.9):.1f}" height="{y_axis.at(0.9) - 10:.1f}"/>'
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x, y = x_axis.at(tick), y_axis.at(tick)
        parts.append(f'<line class="grid" x1="40" x2="{side}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<line class="grid" y1="10" y2="{side - 30}" x1="{x:.1f}" x2="{x:.1f}"/>')
        parts.append(f'<text class="axis" x="35" y="{y + 3.5:.1f}" text-anchor="end">{tick:.0%}</text>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{side - 17}" text-anchor="middle">{tick:.0%}</text>')
    path = _path([p[1] for p in points], [p[2] for p in points], x_axis, y_axis)
    parts.append(f'<path class="line muted" d="{path}"/>')
    for i, (name, x, y) in enumerate(points):
        tip = escape(f"{name}: {x_label} {x:.0%}, {y_label} {y:.0%}")
        at = f'cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}"'
        parts.append(f'<circle class="f{i % 8} ring" {at} r="5"><title>{tip}</title></circle>')
    parts.append(f'<text class="axis" x="{side}" y="{side - 3}" text-anchor="end">{escape(x_label)} →</text>')
    parts.append(f'<text class="axis" x="44" y="{side - 36}">↑ {escape(y_label)}</text>')
    legend = "".join(f'<span><i class="b{i % 8} round"></i>{escape(p[0])}</span>' for i, p in enumerate(points))
    return Markup(
        f'<figure class="chart plane"><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {side + 8} {side}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg><div class="legend">{legend}</div></figure>'
    )
