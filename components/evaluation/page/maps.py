"""Two more small charts as inline SVG: a heat map over steps, and two rates against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from markupsafe import Markup

_WIDTH, _ROW = 720, 16
_SIDE, _LEFT, _TOP, _BOTTOM = 250, 40, 20, 30


def heat_map(cells: Mapping[str, Sequence[tuple[float, int] | None]], x_ticks: Sequence[str], *, title: str) -> Markup:
    """A wide map, rows × columns of shares; None where there is nothing. A cell is (share, count), told on hover."""
    if not cells:
        return Markup("")
    label = min(150, 12 + 6.4 * max(map(len, cells)))
    columns = len(x_ticks)
    width = (_WIDTH - label) / max(1, columns)
    height = len(cells) * _ROW + 20
    parts = []
    for r, (name, row) in enumerate(cells.items()):
        parts.append(_text(label - 5, r * _ROW + 11, "end", name[-22:]))
        for c, cell in enumerate(row):
            if cell is None:
                continue
            share, count = cell
            parts.append(
                f'<rect class="heat" x="{label + c * width:.1f}" y="{r * _ROW}" width="{width - 1:.1f}" '
                f'height="{_ROW - 1}" rx="2" style="--v:{share:.3f}">'
                f"<title>{escape(f'{name}, {x_ticks[c]}: {share:.0%} of {count}')}</title></rect>"
            )
    parts.append(_text(label, height - 5, "start", x_ticks[0]))
    if columns > 1:
        parts.append(_text(_WIDTH, height - 5, "end", x_ticks[-1]))
    scale = "".join(f'<i class="heat" style="--v:{v / 4:g}"></i>' for v in range(5))
    legend = f'<span class="scale">0 % {scale} 100 % right · empty: not drawn</span>'
    return _figure("chart wide", title, f"0 0 {_WIDTH} {height}", "".join(parts), legend)


def plane(points: Sequence[tuple[str, float, float]], *, title: str, x_label: str, y_label: str) -> Markup:
    """Named points in the unit square, joined in order: both of two rates at once. The shaded corner is ≥ 90 % both."""
    if not points:
        return Markup("")

    def at(x: float, y: float) -> tuple[float, float]:
        bottom = _SIDE - _BOTTOM
        return _LEFT + x * (_SIDE - _LEFT), bottom - y * (bottom - _TOP)

    corner_x, corner_y = at(0.9, 0.9)
    size = f'width="{_SIDE - corner_x:.1f}" height="{corner_y - _TOP:.1f}"'
    parts = [f'<rect class="goal" x="{corner_x:.1f}" y="{_TOP}" {size}/>']
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x, y = at(tick, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_SIDE}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<line class="grid" y1="{_TOP}" y2="{_SIDE - _BOTTOM}" x1="{x:.1f}" x2="{x:.1f}"/>')
        parts.append(_text(_LEFT - 5, y + 3.5, "end", f"{tick:.0%}"))
        parts.append(_text(x, _SIDE - 17, "middle", f"{tick:.0%}"))
    path = "L".join("{:.1f},{:.1f}".format(*at(x, y)) for _, x, y in points)
    parts.append(f'<path class="line muted" d="M{path}"/>')
    for i, (name, x, y) in enumerate(points):
        px, py = at(x, y)
        told = escape(f"{name}: {x_label} {x:.0%}, {y_label} {y:.0%}")
        parts.append(f'<circle class="f{i % 8} ring" cx="{px:.1f}" cy="{py:.1f}" r="5"><title>{told}</title></circle>')
    parts.append(_text(_SIDE, _SIDE - 3, "end", f"{x_label} →"))
    parts.append(_text(_LEFT - 30, 10, "start", f"↑ {y_label}"))
    legend = "".join(f'<span><i class="b{i % 8} round"></i>{escape(p[0])}</span>' for i, p in enumerate(points))
    return _figure("chart plane", title, f"0 0 {_SIDE + 8} {_SIDE}", "".join(parts), legend)


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _figure(classes: str, title: str, box: str, inside: str, legend: str = "") -> Markup:
    """A figure around SVG and legend whose texts are escaped already."""
    return Markup(
        f'<figure class="{classes}"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="{box}" role="img" aria-label="{escape(title, quote=True)}">{inside}</svg>'
        f'<div class="legend">{legend}</div></figure>'
    )
