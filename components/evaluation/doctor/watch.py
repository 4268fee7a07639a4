"""Looking at a stage while it trains, or afterwards as if it still did: the same checks at the same steps."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from components.evaluation.doctor.checks.entropy import entropy_collapse
from components.evaluation.doctor.checks.kl import kl_blow_up
from components.evaluation.doctor.checks.length_drift import length_drift
from components.evaluation.doctor.checks.length_pays import length_pays
from components.evaluation.doctor.checks.marked import answer_stuffing, programs_touch_tests
from components.evaluation.doctor.checks.mismatch import mismatch
from components.evaluation.doctor.checks.no_gradient import no_gradient
from components.evaluation.doctor.checks.reward_alone import reward_alone
from components.evaluation.doctor.checks.slow_rewards import slow_rewards
from components.evaluation.doctor.checks.template import template
from components.evaluation.doctor.checks.term_cost import term_at_accuracys_cost
from components.evaluation.doctor.checks.threads import wrong_threads
from components.evaluation.doctor.checks.truncation import truncation
from components.evaluation.doctor.checks.updates import bad_updates
from components.evaluation.doctor.checks.zero_reward import zero_reward
from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import digest
from components.evaluation.doctor.record import RECENT, Record

CHECKS: tuple[Callable[[Record], Finding | None], ...] = (
    zero_reward,
    no_gradient,
    truncation,
    template,
    mismatch,
    entropy_collapse,
    kl_blow_up,
    length_drift,
    bad_updates,
    slow_rewards,
    wrong_threads,
    reward_alone,
    term_at_accuracys_cost,
    programs_touch_tests,
    answer_stuffing,
    length_pays,
)
EVERY = 5  # steps between looks, later 5 % of the steps so far: looking stays cheap in long stages
KEPT = 400  # steps whose groups are remembered; beyond that every second one is forgotten


class Watch:
    """Collects what a stage logs and says what is wrong, each cause once.

    Args:
        single: whether a task, by id, is known to have one value as its answer.
    """

    def __init__(self, record: Record, *, single: Callable[[str], bool] = lambda task: False) -> None:
        self.record, self.single = record, single
        self.found: dict[str, Finding] = {}
        self._next = EVERY

    def log(self, row: Mapping[str, Any]) -> None:
        """Take the metrics of a step; a step that is done again replaces what came of the first time."""
        steps, step = self.record.steps, row["step"]
        del steps[bisect.bisect_left(steps, step, key=lambda known: known["step"]) :]
        steps.append(dict(row))

    def sampled(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the rollouts of one or several steps."""
        if not rows:
            return
        record, first = self.record, min(int(row["step"]) for row in rows)
        record.groups[:] = [view for view in record.groups if view.step < first] + digest(rows, self.single)
        last = max(int(row["step"]) for row in rows)
        record.rows[:] = [row for row in [*record.rows, *rows] if last - RECENT < row["step"]]
        steps = sorted({view.step for view in record.groups})
        if len(steps) > KEPT:
            forgotten = set(steps[1:-RECENT:2])
            record.groups[:] = [view for view in record.groups if view.step not in forgotten]

    @property
    def due(self) -> bool:
        """Whether enough steps have passed since the last look."""
        return self.record.step >= self._next

    def look(self) -> list[Finding]:
        """Run all checks; the findings that are new."""
        self._next = self.record.step + max(EVERY, self.record.step // 20)
        new = [f for check in CHECKS if (f := check(self.record)) is not None and f.name not in self.found]
        self.found |= {finding.name: finding for finding in new}
        return new


def examine(
    record: Record,
    steps: Iterable[Mapping[str, Any]],
    rollouts: Iterable[Sequence[Mapping[str, Any]]] = (),
    *,
    single: Callable[[str], bool] = lambda task: False,
) -> list[Finding]:
    """Go through a finished stage step by step, as `Watch` would have live; findings in the order of their steps.

    Args:
        record: with what is known from the start; it is filled.
        steps: rows of ``logs/metrics.jsonl``.
        rollouts: those of one step each, in order; read one after the other, so that they need not all be in memory.
    """
    watch, parts = Watch(record, single=single), iter(rollouts)
    part = next(parts, None)
    for row in steps:
        watch.log(row)
        while part is not None and (not part or part[0]["step"] <= row["step"]):
            watch.sampled(part)
            part = next(parts, None)
        if watch.due:
            watch.look()
    while part is not None:
        watch.sampled(part)
        part = next(parts, None)
    watch.look()
    return sorted(watch.found.values(), key=lambda finding: finding.step)
