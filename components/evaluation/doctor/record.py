"""All that is known of one stage, as the checks take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.evaluation.doctor.finding import Finding, Sample, Severity, samples
from components.evaluation.doctor.groups import TRUTH, GroupView, truth
from components.evaluation.doctor.trends import column

RECENT = 5  # steps over which a state is judged, as against a trend


@dataclass
class Record:
    """One stage, as far as it has come.

    Attributes:
        settings: of the stage, resolved.
        steps: rows of ``logs/metrics.jsonl``.
        groups: views of its rollouts, empty for a stage that has none.
        rows: rollouts of the last few steps, to show samples from.
        machine: processes, threads, cores and what each worker used, as ``logs/workers.json`` has them.
        failure: why the stage failed, if it did.
    """

    stage: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    groups: list[GroupView] = field(default_factory=list)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def step(self) -> int:
        return int(self.steps[-1]["step"]) if self.steps else max((view.step for view in self.groups), default=0)

    @property
    def recent(self) -> Sequence[Mapping[str, Any]]:
        """Metrics of the last `RECENT` steps; empty before there are as many."""
        return self.steps[-RECENT:] if len(self.steps) >= RECENT else ()

    @property
    def recent_groups(self) -> list[GroupView]:
        """Groups of the last `RECENT` steps of which the rollouts are known."""
        last = sorted({view.step for view in self.groups[-4096:]})[-RECENT:]
        return [view for view in self.groups[-4096:] if view.step in last]

    @property
    def truths(self) -> list[str]:
        """Metrics that say whether answers are right."""
        return [name for name in TRUTH if self.steps and name in self.steps[-1]]

    def last(self, name: str) -> list[float]:
        """Values of a metric over the last `RECENT` steps; empty unless all of them have it."""
        values = column(self.recent, name)
        return values if len(values) == len(self.recent) else []

    def finding(
        self,
        name: str,
        evidence: str,
        remedy: str,
        *,
        severity: Severity = "warning",
        step: int | None = None,
        shown: Sequence[Sample] = (),
        **figures: float,
    ) -> Finding:
        at = self.step if step is None else step
        return Finding(name, self.stage, at, severity, evidence, remedy, figures, tuple(shown))

    def show(self, suits: Callable[[Mapping[str, Any]], bool], best: str = "") -> tuple[Sample, ...]:
        """Recent rollouts that suit, the latest first, or those with the largest ``best`` first."""
        rows = [row for row in reversed(self.rows) if suits(row)]
        return samples(sorted(rows, key=lambda row: -float(row[best])) if best else rows, truth)
