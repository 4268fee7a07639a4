"""A sweep's summary as tables: for the console, and for a README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WHOLE = ("length", "steps", "invalid_calls")
_METRICS = "Means over seeds with 95 % intervals (Student's t); over prompts where there is one seed (marked °)."
_TESTS = "Paired by seed (Student's t), over prompts where there is one seed (°); p by Holm over all tests shown."
_OBJECTIVE = "Means over seeds with 95 % intervals (Student's t), the best first."
_FRONTS = (
    "An arm is on the front if no other is at least as good in both and better in one; its odds are how often that "
    "holds when the means are drawn from what the seeds (with one seed: the prompts) say of them."
)


def markdown_summary(summary: Mapping[str, Any]) -> str:
    """All tables, each under a line that says what it shows; "" if there is nothing to compare."""
    text = ""
    for title, head, rows, caption in _tables(summary):
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        flat = [[cell.replace("\n", " ").replace("|", "∣") for cell in line] for line in lines]
        table = "\n".join(f"| {' | '.join(line)} |" for line in flat)
        text += f"\n**{title}**\n\n{table}\n\n{caption}\n"
    return text


def console_tables(summary: Mapping[str, Any]) -> Iterator[Any]:
    """The same for a terminal."""
    from rich.table import Table

    for title, head, rows, caption in _tables(summary):
        table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for i, column in enumerate(head):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        table.caption, table.caption_justify = caption, "left"
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
    fronts: Sequence[Mapping[str, Any]] = summary["pareto"]
    if fronts:
        labels = list(dict.fromkeys(label for front in fronts for label in front["arms"]))
        head = ["", *(f"{front['x']} / {front['y']} ({front['better'][front['y']]})" for front in fronts)]
        rows = [[label, *(_front(front["arms"].get(label)) for front in fronts)] for label in labels]
        yield "Pareto fronts", head, rows, _FRONTS


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


def _front(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    others = found["dominated_by"]
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return ("on the front" if found["on_front"] else f"below {others[0]}{more}") + f"\nodds {found['odds']:.2f}"
