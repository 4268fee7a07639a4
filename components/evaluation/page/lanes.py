"""The DAG as a column of rows with lanes beside it, as version histories are drawn: readable on any width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

ROW, LANE, MARGIN = 44, 18, 12  # pixels


@dataclass(frozen=True)
class Drawn:
    """Stages in drawing order and the picture of their edges (one row each)."""

    order: list[str]
    svg: Markup


def draw(parents: Mapping[str, tuple[str, ...]]) -> Drawn:
    """Lay out a DAG given each stage's parents. Edges implied by others are left out."""
    reduced = reduce_edges(parents)
    order = arrange(reduced)
    row = {stage: i for i, stage in enumerate(order)}
    children: dict[str, list[str]] = {stage: [] for stage in order}
    for stage in order:
        for parent in reduced[stage]:
            children[parent].append(stage)
    lane = _lanes(order, row, reduced, children, _heirs(order, children))
    width = MARGIN * 2 + LANE * max(lane.values(), default=0)
    edges = [_edge(lane[p], row[p], lane[s], row[s]) for s in order for p in reduced[s]]
    dots = [
        f'<circle class="node" cx="{MARGIN + LANE * lane[s]}" cy="{ROW * row[s] + ROW // 2}" r="5"/>' for s in order
    ]
    size = f'width="{width}" height="{ROW * len(order)}"'
    return Drawn(order, Markup(f'<svg class="lanes" {size} aria-hidden="true">{"".join(edges + dots)}</svg>'))


def _heirs(order: list[str], children: Mapping[str, list[str]]) -> dict[str, str]:
    """The child that goes on in each stage's lane: the one with most stages behind it, so the main path is straight."""
    behind: dict[str, set[str]] = {}
    for stage in reversed(order):
        behind[stage] = set(children[stage]).union(*(behind[child] for child in children[stage]))
    return {s: max(children[s], key=lambda c: (len(behind[c]), order.index(c))) for s in order if children[s]}


def _lanes(
    order: list[str],
    row: Mapping[str, int],
    parents: Mapping[str, tuple[str, ...]],
    children: Mapping[str, list[str]],
    heirs: Mapping[str, str],
) -> dict[str, int]:
    """Lane of each stage: an heir goes on in its parent's lane, the others get one from their parent's row on."""
    lane: dict[str, int] = {}
    taken: list[tuple[int, int, int]] = []  # lane, from row, to row

    def reserve(stage: str, start: int, end: int) -> None:
        free = (i for i in range(len(order) + 1) if all(t != i or end <= a or b <= start for t, a, b in taken))
        lane[stage] = next(free)
        taken.append((lane[stage], start, end))

    for stage in order:
        if stage not in lane:
            inherited = [lane[p] for p in parents[stage] if heirs[p] == stage]
            if inherited:
                lane[stage] = min(inherited)
            else:
                reserve(stage, row[stage], row[stage] + 1)
        if stage in heirs:
            taken.append((lane[stage], row[stage], row[heirs[stage]]))
        for child in children[stage]:
            if child not in lane and all(heirs[p] != child for p in parents[child]):
                reserve(child, row[stage], row[child])
    return lane


def _edge(lane_from: int, row_from: int, lane_to: int, row_to: int) -> str:
    """Down the lane that is further out, bending within one row, so that no edge crosses a node."""
    x0, x1 = MARGIN + LANE * lane_from, MARGIN + LANE * lane_to
    y0, y1 = ROW * row_from + ROW // 2, ROW * row_to + ROW // 2
    if lane_to >= lane_from:
        bend = f"C{x0} {y0 + ROW * 0.6:.0f} {x1} {y0 + ROW * 0.4:.0f} {x1} {y0 + ROW}V{y1}"
    else:
        bend = f"V{y1 - ROW}C{x0} {y1 - ROW * 0.4:.0f} {x1} {y1 - ROW * 0.6:.0f} {x1} {y1}"
    return f'<path class="edge" d="M{x0} {y0}{bend}"/>'


def reduce_edges(parents: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Transitive reduction: a parent that is an ancestor of another parent goes without saying."""
    above: dict[str, set[str]] = {}

    def ancestors(stage: str) -> set[str]:
        if stage not in above:
            known = [p for p in parents.get(stage, ()) if p in parents]
            above[stage] = set(known).union(*(ancestors(p) for p in known)) if known else set()
        return above[stage]

    reduced = {}
    for stage, direct in parents.items():
        known = list(dict.fromkeys(p for p in direct if p in parents))
        reduced[stage] = tuple(p for p in known if not any(p in ancestors(other) for other in known if other != p))
    return reduced


def arrange(parents: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Parents before children; leaves right after their parent; otherwise the stage whose parents are most recent."""
    has_children = {p for direct in parents.values() for p in direct}
    order: list[str] = []
    rest = list(parents)
    while rest:
        ready = [stage for stage in rest if all(p in order for p in parents[stage])]

        def urgency(stage: str) -> tuple[bool, int, int]:
            newest = max((order.index(p) for p in parents[stage]), default=-1)
            waits_for_others = any(
                any(p in rest and p != stage for p in parents[child]) for child in rest if stage in parents[child]
            )
            return (stage in has_children, waits_for_others, -newest)

        chosen = min(ready, key=urgency)
        order.append(chosen)
        rest.remove(chosen)
    return order
