"""Named points with intervals in both directions, and which of them nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from components.evaluation.page.axis import Axis

_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 14, 38


@dataclass(frozen=True)
class Point:
    """One point; ``x`` and ``y`` are (value, low, high).

    Attributes:
        mark: short text in the point, its number in a table.
        front: nothing is better in both directions.
    """

    name: str
    mark: str
    x: tuple[float, float, float]
    y: tuple[float, float, float]
    front: bool
    colour: int = 0


def scatter(
    points: Sequence[Point],
    *,
    title: str,
    x_label: str,
    y_label: str,
    share_x: bool = False,
    share_y: bool = False,
    whiskers: bool = True,
) -> Markup:
    """A figure; points on the front are filled and joined, the others hollow. Figures are told on hover.

    Args:
        whiskers: draw the intervals; the axes then hold them too.
    """
    if not points:
        return Markup("")
    take = slice(0, 3) if whiskers else slice(0, 1)
    xs = [v for p in points for v in p.x[take]]
    ys = [v for p in points for v in p.y[take]]
    x_axis = Axis(min(xs), max(xs), _LEFT + 12, _WIDTH - _RIGHT - 12, share=share_x, tight=True)
    y_axis = Axis(min(ys), max(ys), _HEIGHT - _BOTTOM - 12, _TOP + 12, share=share_y, tight=True)
    parts = [_grid(x_axis, y_axis, x_label, y_label)]
    front = sorted((p for p in points if p.front), key=lambda p: p.x[0])
    if len(front) > 1:
        path = "L".join(f"{x_axis.at(p.x[0]):.1f},{y_axis.at(p.y[0]):.1f}" for p in front)
        parts.append(f'<path class="line muted" d="M{path}"/>')
    parts += [_whiskers(p, x_axis, y_axis) for p in points if whiskers]
    parts += [_dot(p, x_axis, y_axis, x_label, y_label) for p in sorted(points, key=lambda p: p.front)]
    quoted = escape(title, quote=True)
    return Markup(  # every name in it was escaped above
        f'<figure class="chart scatter"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{quoted}">{"".join(parts)}</svg></figure>'
    )


def _whiskers(p: Point, x_axis: Axis, y_axis: Axis) -> str:
    (x, x_low, x_high), (y, y_low, y_high) = p.x, p.y
    at_x, at_y = x_axis.at(x), y_axis.at(y)
    return (
        f'<line class="whisker s{p.colour}" x1="{x_axis.at(x_low):.1f}" x2="{x_axis.at(x_high):.1f}" '
        f'y1="{at_y:.1f}" y2="{at_y:.1f}"/>'
        f'<line class="whisker s{p.colour}" x1="{at_x:.1f}" x2="{at_x:.1f}" '
        f'y1="{y_axis.at(y_low):.1f}" y2="{y_axis.at(y_high):.1f}"/>'
    )


def _dot(p: Point, x_axis: Axis, y_axis: Axis, x_label: str, y_label: str) -> str:
    x, y = x_axis.at(p.x[0]), y_axis.at(p.y[0])
    place = "on the front" if p.front else "dominated"
    told = f"{p.name}: {y_label} {y_axis.text(p.y[0], fine=True)}, {x_label} {x_axis.text(p.x[0], fine=True)}, {place}"
    kind = f"f{p.colour} ring" if p.front else f"s{p.colour} hollow"
    return (
        f'<g><title>{escape(told)}</title><circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="8"/>'
        f'<text class="mark-in{"" if p.front else " out"}" x="{x:.1f}" y="{y + 3.2:.1f}" text-anchor="middle">'
        f"{escape(p.mark)}</text></g>"
    )


def _grid(x_axis: Axis, y_axis: Axis, x_label: str, y_label: str) -> str:
    parts = y_axis.lines_across(_LEFT, _WIDTH - _RIGHT)
    below = _HEIGHT - _BOTTOM + 14
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        parts.append(f'<line class="grid" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" x1="{x:.1f}" x2="{x:.1f}"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{below}" text-anchor="middle">{x_axis.text(tick)}</text>')
    parts.append(f'<text class="axis" x="{_LEFT}" y="9" text-anchor="start">↑ {escape(y_label)}</text>')
    parts.append(
        f'<text class="axis" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">{escape(x_label)} →</text>'
    )
    return "".join(parts)
