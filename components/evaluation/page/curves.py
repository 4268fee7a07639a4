"""Charts of what the stages logged at every step: rewards, losses, lengths, timings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from components.evaluation.page.charts import Series, line_chart, smooth
from components.evaluation.page.drawn import curriculum_map, drawn_charts
from components.evaluation.page.sources import Sources, terms

# Title, which metrics, whether they are shares. A metric goes to the first chart that takes it.
_Charts = tuple[tuple[str, Callable[[str, set[str]], bool], bool], ...]
_MAIN: _Charts = (
    ("Reward", lambda name, _: name == "reward", False),
    ("Accuracy of the rollouts", lambda name, _: name == "accuracy", True),
    ("Reward by term (unweighted)", lambda name, names: name in names or name.startswith("raw/"), False),
    ("Reward by term (weighted)", lambda name, _: name.startswith("weighted/"), False),
    ("Reward by family", lambda name, _: name.startswith("reward/"), False),
    ("Response length (tokens)", lambda name, _: name.startswith("length"), False),
    ("Entropy (nats)", lambda name, _: "entropy" in name, False),
    ("KL divergence (nats)", lambda name, _: name.startswith("kl") and name != "kl_loss", False),
    ("Clip fraction (share of tokens)", lambda name, _: "clip" in name, False),
    ("Groups with signal", lambda name, _: name == "signal", True),
    ("Cut off or failed", lambda name, _: name in ("truncated", "failed", "abstained"), True),
)
_MORE: _Charts = (
    ("Importance ratio (smallest and largest)", lambda name, _: name.startswith("ratio"), False),
    ("Loss", lambda name, _: name.endswith("loss"), False),
    ("Gradient norm", lambda name, _: name.endswith("grad_norm"), False),
    ("Critic: mean value and mean return", lambda name, _: name in ("value_mean", "return_mean"), False),
    ("Critic: explained variance of the returns", lambda name, _: name == "explained_variance", False),
    ("Learning rate", lambda name, _: name in ("lr", "critic_lr"), False),
    ("Seconds per step", lambda name, _: name.startswith("seconds"), False),
    ("Engine against learner: gap of log-probabilities (nats)", lambda name, _: name in ("gap", "gap_max"), False),
)
_COUNTS = {"groups_used", "tokens", "rollouts"}  # say nothing about learning
_TWICE = {"accuracy"}  # has a chart of its own and stands among the terms


def rl_charts(sources: Sources) -> list[dict[str, Any]]:
    """For every RL stage: its name, the charts to look at first, the curriculum's map, and all others."""
    found = []
    for stage, steps in sources.steps.items():
        if "reward" not in steps[-1]:
            continue
        rows = sources.rollouts.get(stage, [])
        names = list(dict.fromkeys(name for row in steps for name in row if name != "step"))
        taken = set(_COUNTS)
        known = _term_names(rows)
        main = _step_charts(steps, names, _MAIN, known, taken)
        more = _step_charts(steps, names, _MORE, known, taken)
        rest = [name for name in names if name not in taken and any(value for _, value in _column(steps, name))]
        more += [line_chart([_series(name, _column(steps, name), 0)], title=name) for name in rest[:8]]
        found.append(
            {"stage": stage, "charts": [*main, *drawn_charts(rows)], "map": curriculum_map(rows), "more": more}
        )
    return found


def loss_charts(sources: Sources) -> list[Markup]:
    """The loss of every supervised stage over its steps."""
    charts = []
    for stage, steps in sources.steps.items():
        if "loss" in steps[-1] and "reward" not in steps[-1]:
            charts.append(line_chart([_series("loss", _column(steps, "loss"), 0)], title=f"{stage}: loss"))
    return charts


def _term_names(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    every = max(1, len(rows) // 2000)  # a term may join late
    return {name for row in rows[::every] for name, _ in terms(row)} | {"accuracy", "format", "language"}


def _step_charts(
    steps: Sequence[Mapping[str, Any]], names: Sequence[str], charts: _Charts, term_names: set[str], taken: set[str]
) -> list[Markup]:
    """The charts that have something to show; ``taken`` grows by the metrics they take."""
    drawn = []
    for title, takes, share in charts:
        mine = [name for name in names if name not in taken and takes(name, term_names)]
        taken |= set(mine) - (_TWICE if title == _MAIN[1][0] else set())
        lines = [_series(_short(name), _column(steps, name), i % 8) for i, name in enumerate(mine)]
        lines = [line for line in lines if len(line.x)]
        if title == "Reward" or any(value for line in lines for value in line.y):
            drawn.append(line_chart(lines, title=title, share=share))
    return drawn


def _short(name: str) -> str:
    """The metric without what the chart's title says already."""
    for prefix in ("reward/", "weighted/", "raw/", "seconds_"):
        name = name.removeprefix(prefix)
    return name


def _column(steps: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (float(row["step"]), float(row[name]))
        for row in steps
        if isinstance(row.get(name), (int, float)) and row[name] == row[name]
    ]


def _series(name: str, column: Sequence[tuple[float, float]], colour: int) -> Series:
    """A line through at most 240 points, smoothed, with the raw values behind it where there are many."""
    every = max(1, len(column) // 240)
    xs, ys = [x for x, _ in column], [y for _, y in column]
    smoothed = smooth(ys)
    return Series(name, xs[::every], smoothed[::every], raw=ys[::every] if len(ys) > 20 else None, colour=colour)
