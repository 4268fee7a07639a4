"""The runs of a sweep by arm: what each reported, from the runs' own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.objective import evaluated
from flows.runs import list_runs
from flows.sweep.grid import is_seed
from flows.sweep.record import read_sweep

Figures = Mapping[str, float]


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


def arm_runs(artifacts: Path, sweep: str) -> list[ArmRuns]:
    """The arms of a sweep in the order they were listed."""
    records = latest_records(artifacts, sweep)
    arms: dict[str, ArmRuns] = {}
    for number, run in enumerate(read_sweep(artifacts, sweep)["runs"]):
        words = run["overrides"].split(" ")
        label = " ".join(word for word in words if not is_seed(word)) or "(no change)"
        arm = arms.setdefault(label, ArmRuns(label))
        arm.runs += 1
        record = records.get(number, {})
        seed = " ".join(word.partition("=")[2] for word in words if is_seed(word)) or str(record.get("seed", 0))
        if stages := evaluated(record):
            arm.by_seed[seed] = stages[-1]["metrics"]
            folder = record["stages"].get(stages[-1].get("evaluation", ""), {}).get("path")
            if folder and (answers := Path(folder) / "answers.parquet").is_file():
                arm.answers[seed] = answers
        if (worth := record.get("objective") or {}).get("value") is not None:
            arm.objectives[seed] = worth["value"]
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
