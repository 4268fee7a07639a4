"""The runs of a sweep by arm: what each reported, from the runs' own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.objective import evaluated
from flows.runs import list_runs
from flows.sweep.grid import named
from flows.sweep.record import read_sweep

Figures = Mapping[str, float]


@dataclass(frozen=True)
class ListedRun:
    """One run of a sweep.

    Attributes:
        arm: the swept values, seeds aside; what the runs that differ in their seed alone have in common.
        seed: what its seed reads.
        state: waiting, running, done, failed, interrupted.
        record: its last record; {} if it was never started.
        again: every stage is that of an earlier run of its arm (the same seed once more): it counts in no statistic.
    """

    arm: str
    seed: str
    state: str
    record: Mapping[str, Any]
    again: bool = False


@dataclass
class ArmRuns:
    """The runs of one setting of what was swept.

    Attributes:
        label: the swept values, seeds aside.
        runs: how many there are, those without a report too.
        by_seed: seed → metric → estimate {value, low, high, n} of the last evaluated stage.
        answers: seed → file of that evaluation's answers.
        objectives: seed → the run's objective; ``maximise`` and ``terms`` say what it is.
    """

    label: str
    runs: int = 0
    by_seed: dict[str, dict[str, Figures]] = field(default_factory=dict)
    answers: dict[str, Path] = field(default_factory=dict)
    objectives: dict[str, float] = field(default_factory=dict)
    maximise: bool = True
    terms: Sequence[str] = ()

    def values(self, metric: str) -> dict[str, float]:
        return {seed: found[metric]["value"] for seed, found in self.by_seed.items() if metric in found}


def listed_runs(artifacts: Path, sweep: str) -> list[ListedRun]:
    """Every run of a sweep, in its order."""
    records = latest_records(artifacts, sweep)
    found: list[ListedRun] = []
    seen: set[tuple[str, Any]] = set()
    for number, run in enumerate(read_sweep(artifacts, sweep)["runs"]):
        record = records.get(number, {})
        names = {**named(run["overrides"].split(" ")), **run}
        arm, seed = names["arm"], names["seed"] or str(record.get("seed", 0))
        result = _result(record)
        again = result is not None and (arm, result) in seen
        seen.add((arm, result))
        state = run.get("state") or record.get("state", "waiting")
        found.append(ListedRun(arm, seed, state, record, again))
    return found


def arm_runs(artifacts: Path, sweep: str) -> list[ArmRuns]:
    """The arms of a sweep in the order they were listed."""
    arms: dict[str, ArmRuns] = {}
    for run in listed_runs(artifacts, sweep):
        arm, record = arms.setdefault(run.arm, ArmRuns(run.arm)), run.record
        if run.again:
            continue
        arm.runs += 1
        if stages := evaluated(record):
            arm.by_seed[run.seed] = stages[-1]["metrics"]
            folder = record["stages"].get(stages[-1].get("evaluation", ""), {}).get("path")
            if folder and (answers := Path(folder) / "answers.parquet").is_file():
                arm.answers[run.seed] = answers
        if (worth := record.get("objective") or {}).get("value") is not None:
            arm.objectives[run.seed] = worth["value"]
            arm.maximise, arm.terms = worth["direction"] == "maximise", sorted(worth["terms"])
    return list(arms.values())


def latest_records(artifacts: Path, sweep: str) -> dict[int, dict[str, Any]]:
    """The last record of each run of the sweep that was started, by its number."""
    numbered: dict[int, dict[str, Any]] = {}
    for record in list_runs(artifacts):
        owner, _, number = str(record.get("sweep", "")).rpartition("/")
        if owner == sweep and number.isdigit():
            numbered[int(number)] = record
    return numbered


def _result(record: Mapping[str, Any]) -> frozenset[tuple[str, str]] | None:
    """The artifact of every stage; None if one is missing."""
    places = {name: stage.get("key") or stage.get("path") for name, stage in (record.get("stages") or {}).items()}
    return frozenset(places.items()) if places and all(places.values()) else None
