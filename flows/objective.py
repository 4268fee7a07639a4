"""What a run is worth: one number from its evaluations, for `r1flow run --json` and for searches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem, did_you_mean, short

DIRECTIONS = ("maximise", "minimise")
KEYS = ("metric", "direction")
DEFAULT = {"pass@1": 1.0}
_WHERE = "configuration"


@dataclass(frozen=True)
class Objective:
    """Weighted sum of metrics.

    Attributes:
        weights: metric → weight. ``pass@1`` means the last evaluated stage that has it, ``rl_1/pass@1`` that stage.
        maximise: whether more is better.
    """

    weights: Mapping[str, float]
    maximise: bool = True

    def of(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """``value`` (None if a metric is missing), ``terms`` name → figure, ``direction`` and ``problem`` of a run.

        Args:
            content: the run's record.
        """
        figures = run_figures(content)
        terms = {name: value for name in self.weights if (value := figures.get(name)) is not None}
        missing = [name for name in self.weights if name not in terms]
        value = math.fsum(self.weights[name] * terms[name] for name in terms)
        problem = f"the run has no metric {', '.join(missing)}" if missing else ""
        if missing and figures:
            problem += f"; {did_you_mean(missing[0], sorted(figures))}"
        return {"value": None if missing else value, "terms": terms, "direction": self.direction, "problem": problem}

    def none(self, state: str) -> dict[str, Any]:
        """The same of a run that did not come to its end, which is worth nothing."""
        return {"value": None, "terms": {}, "direction": self.direction, "problem": f"the run is {state}"}

    @property
    def direction(self) -> str:
        return DIRECTIONS[0] if self.maximise else DIRECTIONS[1]


def read_objective(node: Any) -> Objective:
    """The objective that the configuration's ``objective`` describes. Raises: BadInput."""
    node = {} if node is None else node
    if not isinstance(node, Mapping):
        raise BadInput(Problem(_WHERE, "objective", "is not a mapping", got=node, fix="write objective.metric=pass@1"))
    problems = [
        Problem(_WHERE, f"objective.{key}", "no such key", fix=did_you_mean(str(key), KEYS, prefix="objective."))
        for key in node
        if key not in KEYS
    ]
    metric, direction = node.get("metric", "pass@1"), node.get("direction", DIRECTIONS[0])
    weights = {metric: 1.0} if isinstance(metric, str) else metric
    if not isinstance(weights, Mapping) or not weights or not all(_is_number(w) for w in weights.values()):
        fix = "name a metric, or weigh several: {pass@1: 1, safety_mean: 0.5}"
        problems.append(Problem(_WHERE, "objective.metric", "is neither a metric nor weights", got=metric, fix=fix))
    if direction not in DIRECTIONS:
        fix = did_you_mean(str(direction), DIRECTIONS)
        problems.append(Problem(_WHERE, "objective.direction", "no such direction", got=short(str(direction)), fix=fix))
    if problems:
        raise BadInput(problems)
    return Objective({str(name): float(weight) for name, weight in weights.items()}, direction == DIRECTIONS[0])


def run_figures(content: Mapping[str, Any]) -> dict[str, float]:
    """Every figure of a run: ``stage/metric`` and, of the last stage in its pipeline that has it, ``metric``.

    What the report says of an evaluated stage comes before what stages said of themselves.
    """
    from components.tracking.events import numbers

    own = {name: numbers(stage.get("metrics") or {}) for name, stage in (content.get("stages") or {}).items()}
    reported = {name: numbers(metrics) for name, metrics in evaluations(content).items()}
    figures: dict[str, float] = {}
    for stages in (own, reported):
        for stage, found in stages.items():
            for name, value in found.items():
                figures[name] = value
                figures[f"{stage}/{name}"] = value
    return figures


def evaluations(content: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Evaluated stage → metric → estimate {value, low, high, n}, from the run's report; {} without one."""
    return {entry["name"]: entry["metrics"] for entry in evaluated(content)}


def evaluated(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations that a run's report compares, in its order: name, evaluation (the stage), metrics."""
    for stage in (content.get("stages") or {}).values():
        summary = Path(stage.get("path") or "/nonexistent") / "summary.json"
        if summary.with_name("report.html").is_file() and summary.is_file():
            return json.loads(summary.read_text("utf-8"))["stages"]
    return []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
