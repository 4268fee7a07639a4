"""The page of a sweep: its arms side by side, tests against one of them, trade-offs, curves, settings and runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.evaluation.page.arm_data import ArmRun, curves, differing_settings, lifts, over_seeds
from components.evaluation.page.charts import Series, legend_keys, line_chart
from components.evaluation.page.lift_view import PARTS
from components.evaluation.page.notes import LABELS
from components.evaluation.page.scatter import Point, scatter
from components.evaluation.page.view import fill
from components.evaluation.trade_offs import MEANING, no_trade_off, odds, place

_TITLES = {
    "reward": "Reward",
    "accuracy": "Accuracy of the rollouts",
    "length": "Response length (tokens)",
    "entropy": "Entropy (nats)",
    "kl": "KL divergence (nats)",
    "kl_ref": "KL to the reference (nats)",
    "kl_old": "KL to the policy that sampled (nats)",
    "clip_fraction": "Clip fraction (share of tokens)",
    "signal": "Groups with signal",
    "truncated": "Cut off",
}
_SHARES = {"accuracy", "signal", "truncated"}
_AREAS = 6  # arms: more of them would hide each other


def render_sweep(summary: Mapping[str, Any], runs: Sequence[ArmRun], *, title: str, home: Path) -> str:
    """The page.

    Args:
        summary: of the sweep: ``reference`` (label or None), ``arms`` (each label, runs, seeds, ``metrics`` name →
            estimate with ``over``, ``against`` name → test) and ``pareto`` (each x, y, better, level, ``arms`` label →
            {on_front, odds, dominated_by, level_with}).
        home: directory of the page; links to the runs' reports are relative to it.
    """
    arms = _ranked(summary["arms"])
    colours = {arm["label"]: i for i, arm in enumerate(arms)}
    names = short_labels([arm["label"] for arm in arms])
    metrics = list(dict.fromkeys(name for arm in arms for name in arm["metrics"]))
    return fill(
        "sweep.html.j2",
        ("page.js",),
        title=title,
        arms=arms,
        metrics=metrics,
        colours=colours,
        names=names,
        what=_common_key([arm["label"] for arm in arms]),
        reference=summary["reference"],
        tested=[name for name in metrics if any(name in arm["against"] for arm in arms)],
        widest=_widest(arms),
        fronts=[_front(front, arms, names) for front in summary["pareto"]],
        meaning=MEANING,
        curves=_curve_charts(runs, colours, names),
        legend=legend_keys([_line(arm["label"], colours, names) for arm in arms]),
        settings=differing_settings(runs),
        lifts=lifts(runs),
        parts=PARTS,
        runs=[_run(run, home) for run in runs],
        seeds=sorted({seed for arm in arms for seed in arm["seeds"]}),
        over=sorted({e.get("over", "seeds") for arm in arms for e in arm["metrics"].values()}),
    )


def _ranked(arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Best accuracy first; arms without figures last."""

    def accuracy(arm: Mapping[str, Any]) -> float:
        return arm["metrics"].get("pass@1", {}).get("value", float("-inf"))

    return [dict(arm) | {"number": i + 1} for i, arm in enumerate(sorted(arms, key=accuracy, reverse=True))]


def _widest(arms: Sequence[Mapping[str, Any]]) -> float:
    """Half-width of the axis on which the arms' changes in accuracy are drawn."""
    ends = [abs(arm["against"]["pass@1"][end]) for arm in arms if "pass@1" in arm["against"] for end in ("low", "high")]
    return max(ends, default=1.0) or 1.0


def _front(front: Mapping[str, Any], arms: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    """Chart and table of one trade-off; no chart where all arms have the same of what may be paid."""
    accuracy, other = str(front["x"]), str(front["y"])
    shown = [arm for arm in arms if arm["label"] in front["arms"]]
    points = [
        Point(
            names[arm["label"]],
            str(arm["number"]),
            _estimate(arm["metrics"][other]),
            _estimate(arm["metrics"][accuracy]),
            front["arms"][arm["label"]]["on_front"],
            (arm["number"] - 1) % 8,
        )
        for arm in shown
    ]
    label = LABELS.get(other, other)
    chart = scatter(
        points,
        title=f"{LABELS.get(accuracy, accuracy)} against {label}",
        x_label=f"{label} ({front['better'][other]} is better)",
        y_label=LABELS.get(accuracy, accuracy),
        share_x=other != "length",
        share_y=True,
        whiskers=len(shown) <= _AREAS,
    )
    found = front["arms"]
    rows = [
        {"label": arm["label"], "number": arm["number"]}
        | {"place": place(found[arm["label"]], names), "odds": odds(found[arm["label"]])}
        for arm in shown
    ]
    return {"other": label, "chart": chart, "rows": rows, "level": no_trade_off(other) if front["level"] else ""}


def _estimate(estimate: Mapping[str, float]) -> tuple[float, float, float]:
    return estimate["value"], estimate["low"], estimate["high"]


def _line(
    arm: str,
    colours: Mapping[str, int],
    names: Mapping[str, str],
    x: Sequence[float] = (),
    y: Sequence[float] = (),
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
) -> Series:
    """An arm's line, or what stands for it in a legend."""
    number = colours.get(arm, 0)
    drawn = Series(names.get(arm, arm), x, y, low, high, colour=number % 8, dash=number // 8, key=number)
    return replace(drawn, area=low is not None)


def _curve_charts(runs: Sequence[ArmRun], colours: Mapping[str, int], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each stage, a chart per metric: a line per arm, its seeds' mean, and what they span where arms are few."""
    sections = []
    for stage, metrics in curves(runs).items():
        charts = []
        for metric, by_arm in metrics.items():
            lines = []
            for arm in sorted(by_arm, key=lambda name: colours.get(name, 0)):
                x, mean, low, high = over_seeds(by_arm[arm])
                spread = len(by_arm[arm]) > 1 and len(by_arm) <= _AREAS
                lines.append(_line(arm, colours, names, x, mean, *((low, high) if spread else ())))
            if any(value for line in lines for value in line.y):
                title = _TITLES[metric]
                charts.append(line_chart(lines, title=title, share=metric in _SHARES, legend=False))
        sections.append({"stage": stage, "charts": charts})
    return sections


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Label → what is shown: the value alone where all arms set the same one key, else each key's last part, as long as
    that tells the arms apart."""
    if _common_key(labels):
        return {label: label.partition("=")[2] for label in labels}
    short = {label: " ".join(_last_part(word) for word in label.split(" ")) for label in labels}
    return short if len(set(short.values())) == len(short) else {label: label for label in labels}


def _last_part(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{key.rpartition('.')[2]}{equals}{value}"


def _common_key(labels: Sequence[str]) -> str:
    """The key that every arm sets and nothing else; "" if there is none."""
    keys = {label.partition("=")[0] if "=" in label and " " not in label else "" for label in labels}
    return keys.pop() if len(keys) == 1 else ""


def _run(run: ArmRun, home: Path) -> dict[str, Any]:
    findings = run.summary.get("findings") or []
    return {
        "arm": run.arm,
        "seed": run.seed,
        "state": run.state,
        "run": run.run,
        "wall_s": run.wall_s if run.stages else None,
        "built": run.count("done"),
        "reused": run.count("reused"),
        "findings": [f"{finding['stage']}: {finding['name'].replace('_', ' ')}" for finding in findings],
        "report": _relative(run.report, home),
    }


def _relative(page: Path | None, home: Path) -> str | None:
    """The way from the page's directory, so that the artifacts may be moved together."""
    if page is None:
        return None
    return Path(os.path.relpath(page.resolve(), home.resolve())).as_posix()
