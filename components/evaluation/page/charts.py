"""Small charts as inline SVG. Colours are classes, so that the page's theme decides; all text is escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from components.evaluation.page.axis import Axis

_WIDTH, _HEIGHT = 340, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 10, 10, 34


@dataclass(frozen=True)
class Series:
    """One line. ``low`` and ``high`` give each point a whisker; ``raw`` is drawn faintly behind the line.

    Attributes:
        area: fill between low and high instead of whiskers.
        dash: 0 for a whole line, 1 and 2 for broken ones: tells lines of one colour apart.
        key: what the legend calls the line by; its place in the chart if None.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    raw: Sequence[float] | None = None
    colour: int = 0
    area: bool = False
    dash: int = 0
    key: int | None = None


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
    doubling_x: bool = False,
    legend: bool = True,
) -> Markup:
    """A figure with a title, a legend where there is more than one line, and axes with about four ticks.

    Args:
        share: values are shares in [0, 1], shown as percentages on a full axis.
        doubling_x: the x axis goes in doublings.
        legend: draw one; False where the page has one for several charts.
    """
    series = [s for s in series if len(s.x)]
    if not series:
        return Markup("")
    xs = [x for s in series for x in s.x]
    shown = [v for s in series for v in (*s.y, *(s.low or ()), *(s.high or ()), *(s.raw or ()))]
    x_axis = Axis(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, whole=whole_x, tight=True, doubling=doubling_x)
    low, high = (0.0, 1.0) if share else (min(shown), max(shown))
    y_axis = Axis(low, high, _HEIGHT - _BOTTOM, _TOP, share=share)
    parts = [_grid(x_axis, y_axis, x_label)]
    parts += [f'<g data-line="{_key(s, i)}">{_line(s, x_axis, y_axis)}</g>' for i, s in enumerate(series)]
    cross = f'<line class="cross" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
    told = escape(json.dumps(_hover(series, x_axis, y_axis, x_label)), quote=True)
    label = escape(f"{title}: {', '.join(s.name for s in series)}" if len(series) > 1 else title, quote=True)
    return Markup(  # every name in it was escaped
        f'<figure class="chart" data-hover="{told}"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" tabindex="0" aria-label="{label}">'
        f"{''.join(parts)}{cross}</svg>"
        f'<div class="legend">{legend_keys(series) if legend and len(series) > 1 else ""}</div></figure>'
    )


def legend_keys(series: Sequence[Series]) -> Markup:
    """A button per line that switches it off and on."""
    keys = (
        f'<button type="button" data-line="{_key(s, i)}" aria-pressed="true">'
        f'<i class="b{s.colour}{_dashes(s)}"></i>{escape(s.name)}</button>'
        for i, s in enumerate(series)
    )
    return Markup("".join(keys))


def _key(s: Series, place: int) -> int:
    return place if s.key is None else s.key


def _dashes(s: Series) -> str:
    return f" dash{s.dash % 3}" if s.dash else ""


def _hover(series: Sequence[Series], x_axis: Axis, y_axis: Axis, x_label: str) -> dict[str, object]:
    """Where the points are and what they say, for the longest line and those with the same points."""
    longest = max(series, key=lambda s: len(s.x))
    return {
        "x": [round(x_axis.at(x), 1) for x in longest.x],
        "label": [f"{x_label} {x:g}" for x in longest.x],
        "series": [
            {"name": s.name, "c": s.colour, "line": _key(s, i), "y": _said(s, longest, y_axis)}
            for i, s in enumerate(series)
        ],
    }


def _said(s: Series, longest: Series, y_axis: Axis) -> list[str | None]:
    """The line's values at the longest line's points, None where it has none."""
    known = dict(zip(s.x, s.y, strict=True))
    return [None if x not in known else y_axis.text(known[x], fine=True) for x in longest.x]


def _grid(x_axis: Axis, y_axis: Axis, x_label: str) -> str:
    parts = y_axis.lines_across(_LEFT, _WIDTH - _RIGHT)
    below = _HEIGHT - _BOTTOM + 14
    for tick in x_axis.ticks():
        parts.append(f'<text class="axis" x="{x_axis.at(tick):.1f}" y="{below}" text-anchor="middle">{tick:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle:g}" y="{_HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _points(x: Sequence[float], y: Sequence[float], x_axis: Axis, y_axis: Axis) -> list[str]:
    return [f"{x_axis.at(a):.1f},{y_axis.at(b):.1f}" for a, b in zip(x, y, strict=True)]


def _line(s: Series, x_axis: Axis, y_axis: Axis) -> str:
    parts = []
    if s.area and s.low is not None and s.high is not None:
        outline = _points(s.x, s.high, x_axis, y_axis) + _points(s.x, s.low, x_axis, y_axis)[::-1]
        parts.append(f'<path class="area f{s.colour}" d="M{"L".join(outline)}Z"/>')
    if s.raw is not None:
        parts.append(f'<path class="raw s{s.colour}" d="M{"L".join(_points(s.x, s.raw, x_axis, y_axis))}"/>')
    parts.append(f'<path class="line s{s.colour}{_dashes(s)}" d="M{"L".join(_points(s.x, s.y, x_axis, y_axis))}"/>')
    if not s.area and s.low is not None and s.high is not None:
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
