"""A sweep's summary as tables: for the console, and for a README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WHOLE = ("length", "steps", "invalid_calls")
_METRICS = "Means over seeds with 95 % intervals (Student's t); over prompts where there is one seed (marked °)."
_TESTS = "Paired by seed (Student's t), over prompts where there is one seed (°); p by Holm over all tests shown."
_OBJECTIVE = "Means over seeds with 95 % intervals (Student's t), the best first."


def markdown_summary(summary: Mapping[str, Any]) -> str:
    """All tables, each under a line that says what it shows; "" if there is nothing to compare."""
    text = ""
    for title, head, rows, caption in _tables(summary):
        if not rows:
            text += f"\n**{title}**\n\n{caption}\n"
            continue
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        flat = [[cell.replace("\n", " ").replace("|", "∣") for cell in line] for line in lines]
        table = "\n".join(f"| {' | '.join(line)} |" for line in flat)
        text += f"\n**{title}**\n\n{table}\n\n{caption}\n"
    return text


def console_tables(summary: Mapping[str, Any]) -> Iterator[Any]:
    """The same for a terminal."""
    from rich.markup import escape  # a label may hold brackets: first.tags=[a,b]
    from rich.table import Table

    for title, head, rows, caption in _tables(summary):
        table = Table(title=escape(title), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        if not rows:  # it is as wide as what is said of it
            table.min_width = max(map(len, [title, *caption.split("\n")]))
        for i, column in enumerate(head):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(escape, row))
        table.caption, table.caption_justify = escape(caption), "left"
        yield table


def _tables(summary: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]], str]]:
    arms: Sequence[Mapping[str, Any]] = summary["arms"]
    names = list(dict.fromkeys(name for arm in arms for name in arm["metrics"]))
    worth = summary["objective"]
    if worth and not set(worth["terms"]) <= set(names):
        ranked = sorted((arm for arm in arms if arm["objective"]), key=lambda arm: arm["objective"]["value"])
        ranked = ranked[::-1] if worth["direction"] == "maximise" else ranked
        rows = [[arm["label"], _estimate(arm["objective"], "objective")] for arm in ranked]
        yield f"Objective ({worth['direction']} {', '.join(worth['terms'])})", ["", "objective"], rows, _OBJECTIVE
    if not names:
        return
    value = [[arm["label"], *(_estimate(arm["metrics"].get(name), name) for name in names)] for arm in arms]
    yield "Last evaluated stage", ["", *names], value, _METRICS
    tested = [arm for arm in arms if arm["against"]]
    if tested:
        rows = [[arm["label"], *(_test(arm["against"].get(name), name) for name in names)] for arm in tested]
        yield f"Against {summary['reference']}", ["", *names], rows, _TESTS
    yield from _fronts(summary["pareto"])


def _fronts(fronts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str], list[list[str]], str]]:
    """One table of the fronts; of those whose arms are level a line."""
    from components.evaluation.trade_offs import MEANING, no_trade_off, odds, place

    shown = [front for front in fronts if not front["level"]]
    labels = list(dict.fromkeys(label for front in shown for label in front["arms"]))
    head = ["", *(f"{front['x']} / {front['y']} ({front['better'][front['y']]})" for front in shown)]

    def cell(found: Mapping[str, Any] | None) -> str:
        return "–" if found is None else f"{place(found)}\nodds {odds(found)}"

    rows = [[label, *(cell(front["arms"].get(label)) for front in shown)] for label in labels]
    level = [no_trade_off(front["y"]) for front in fronts if front["level"]]
    if caption := "\n".join([*([MEANING] if rows else []), *level]):
        yield "Pareto fronts", head, rows, caption


def _estimate(found: Mapping[str, Any] | None, name: str) -> str:
    if found is None:
        return "–"
    digits = 1 if name in _WHOLE else 3
    value, low, high = (f"{found[key]:.{digits}f}" for key in ("value", "low", "high"))
    mark = "°" if found["over"] == "prompts" else ""
    return f"{value}{mark}\n[{low}, {high}]" if low != high else f"{value}{mark}"


def _test(found: Mapping[str, Any] | None, name: str) -> str:
    if found is None:
        return "–"
    digits = 1 if name in _WHOLE else 3
    effect, low, high = (f"{found[key]:+.{digits}f}" for key in ("effect", "low", "high"))
    mark = "°" if found["over"] == "prompts" else ""
    interval = f"\n[{low}, {high}]" if low != high else ""
    return f"{effect}{mark} p {found['p_holm']:.2g}{interval}"
