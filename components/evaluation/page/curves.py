"""Charts over training steps: rewards, losses, lengths, and what the curriculum drew."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from components.evaluation.page.charts import Series, line_chart, smooth
from components.evaluation.page.maps import heat_map
from components.evaluation.page.sources import Sources, terms

_BINS = 16
# Title, which metrics, whether they are shares. A metric goes to the first chart that takes it.
_RL_CHARTS: tuple[tuple[str, Callable[[str, set[str]], bool], bool], ...] = (
    ("Reward", lambda name, _: name == "reward", False),
    ("Reward by term (unweighted)", lambda name, names: name in names or name.startswith("raw/"), False),
    ("Reward by term (weighted)", lambda name, _: name.startswith("weighted/"), False),
    ("Reward by family", lambda name, _: name.startswith("reward/"), False),
    ("Response length (tokens)", lambda name, _: name.startswith("length"), False),
    ("Entropy (nats)", lambda name, _: "entropy" in name, False),
    ("KL divergence (nats)", lambda name, _: name.startswith("kl") and name != "kl_loss", False),
    ("Clipped tokens", lambda name, _: "clip" in name, False),
    ("Importance ratio", lambda name, _: name.startswith("ratio"), False),
    ("Groups with signal", lambda name, _: name == "signal", True),
    ("Cut off or failed", lambda name, _: name in ("truncated", "failed", "abstained"), True),
    ("Loss", lambda name, _: name.endswith("loss"), False),
    ("Gradient norm", lambda name, _: name.endswith("grad_norm"), False),
    ("Critic: mean value and mean return", lambda name, _: name in ("value_mean", "return_mean"), False),
    ("Critic: explained variance of the returns", lambda name, _: name == "explained_variance", False),
    ("Learning rate", lambda name, _: name in ("lr", "critic_lr"), False),
    ("Seconds per step", lambda name, _: name.startswith("seconds"), False),
)
_PREFIX = re.compile(r"^(reward/|weighted/|raw/|seconds_)")  # said by the chart's title
_COUNTS = {"groups_used", "tokens", "rollouts"}  # say nothing about learning


def rl_charts(sources: Sources) -> list[dict[str, Any]]:
    """For every RL stage: name, charts, and the metrics no chart knows in charts of their own."""
    return [
        {
            "stage": stage,
            "charts": [
                *_step_charts(steps, _term_names(sources, stage)),
                _curriculum(sources.rollouts.get(stage, [])),
                _levels_drawn(sources.rollouts.get(stage, [])),
            ],
        }
        for stage, steps in sources.steps.items()
        if "reward" in steps[-1]
    ]


def loss_charts(sources: Sources) -> list[Markup]:
    """The loss of every supervised stage over its steps."""
    charts = []
    for stage, steps in sources.steps.items():
        if "loss" in steps[-1] and "reward" not in steps[-1]:
            charts.append(line_chart([_series("loss", _column(steps, "loss"), 0)], title=f"{stage}: loss"))
    return charts


def _term_names(sources: Sources, stage: str) -> set[str]:
    return {name for row in sources.rollouts.get(stage, [])[:2000] for name, _ in terms(row)} | {
        "accuracy",
        "format",
        "language",
    }


def _step_charts(steps: Sequence[Mapping[str, Any]], term_names: set[str]) -> list[Markup]:
    names = list(dict.fromkeys(name for row in steps for name in row if name != "step"))
    charts, taken = [], set(_COUNTS)
    for title, takes, share in _RL_CHARTS:
        mine = [name for name in names if name not in taken and takes(name, term_names)]
        taken |= set(mine)
        lines = [
            _series(
                name.removeprefix("reward/").removeprefix("weighted/").removeprefix("seconds_"),
                _column(steps, name),
                i % 8,
            )
            for i, name in enumerate(mine)
            if _column(steps, name)
        ]
        if title == "Reward" or any(value for line in lines for value in line.y):
            charts.append(line_chart(lines, title=title, share=share))
    rest = [name for name in names if name not in taken and any(value for _, value in _column(steps, name))]
    charts += [line_chart([_series(name, _column(steps, name), 0)], title=name) for name in rest[:8]]
    return charts


def _column(steps: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (float(row["step"]), float(row[name]))
        for row in steps
        if isinstance(row.get(name), (int, float)) and row[name] == row[name]
    ]


def _series(name: str, column: Sequence[tuple[float, float]], colour: int) -> Series:
    """A line through at most 240 points, smoothed, with the raw values behind it."""
    every = max(1, len(column) // 240)
    xs, ys = [x for x, _ in column], [y for _, y in column]
    smoothed = smooth(ys)
    return Series(name, xs[::every], smoothed[::every], raw=ys[::every] if len(ys) > 20 else None, colour=colour)


def _bins(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """First step, steps in a bin, number of bins."""
    first, last = min(row["step"] for row in rows), max(row["step"] for row in rows)
    size = max(1, -(-(last - first + 1) // _BINS))
    return first, size, -(-(last - first + 1) // size)


def _curriculum(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Pass rate of every cell over the steps; empty where the curriculum drew nothing of it."""
    judged = [(row, dict(terms(row)).get("accuracy")) for row in rows if row.get("kind", "reasoning") == "reasoning"]
    judged = [(row, right) for row, right in judged if right is not None]
    if not judged:
        return Markup("")
    first, size, bins = _bins([row for row, _ in judged])
    found: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(bins)])
    for row, right in judged:
        found[f"{row['family']}/{row['level']}"][(row["step"] - first) // size].append(right)
    cells = {
        name: [(sum(b) / len(b), len(b)) if b else None for b in columns] for name, columns in sorted(found.items())
    }
    ticks = [f"step {first + i * size + 1}" for i in range(bins)]
    return heat_map(cells, ticks, title="Curriculum: pass rate of what was drawn")


def _levels_drawn(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Mean level of the prompts drawn, per family."""
    reasoning = [row for row in rows if row.get("kind", "reasoning") == "reasoning"]
    if not reasoning:
        return Markup("")
    levels: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in reasoning:
        levels[row["family"]][row["step"]].append(row["level"])
    if all(len({level for step in steps.values() for level in step}) == 1 for steps in levels.values()):
        return Markup("")
    lines = [
        _series(family, [(step + 1, sum(v) / len(v)) for step, v in sorted(steps.items())], i % 8)
        for i, (family, steps) in enumerate(sorted(levels.items()))
    ]
    return line_chart(lines, title="Curriculum: mean level drawn")
