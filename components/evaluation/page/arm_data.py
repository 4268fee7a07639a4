"""What the runs of a sweep left, read for its page: curves, settings that differ, cost, findings, kinds of lift."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.evaluation.page.charts import smooth

Curve = list[tuple[float, float]]
_METRICS = ("reward", "accuracy", "length", "entropy", "kl_ref", "kl", "kl_old", "clip_fraction", "signal", "truncated")
_POINTS = 120


@dataclass(frozen=True)
class ArmRun:
    """One run of a sweep.

    Attributes:
        arm: label of the setting it tries, seeds aside.
        seed: what its seed reads.
        state: waiting, running, done, failed, interrupted.
        stages: stage → state, path, settings, wall_s, as its record has them; {} if it was never started.
    """

    arm: str
    seed: str
    state: str
    run: str = ""
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def report(self) -> Path | None:
        """Its report's page, if it has one."""
        pages = (path / "report.html" for path in map(_path, self.stages.values()) if path)
        return next((page for page in pages if page.is_file()), None)

    @property
    def summary(self) -> Mapping[str, Any]:
        """What its report says, for a program; {} without one."""
        file = self.report.with_name("summary.json") if self.report else None
        return json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}

    @property
    def wall_s(self) -> float:
        """Seconds in the stages that it built itself."""
        return sum(stage.get("wall_s") or 0.0 for stage in self.stages.values() if stage.get("state") == "done")

    def count(self, state: str) -> int:
        return sum(stage.get("state") == state for stage in self.stages.values())


def _path(stage: Mapping[str, Any]) -> Path | None:
    return Path(stage["path"]) if stage.get("path") else None


def curves(runs: Sequence[ArmRun]) -> dict[str, dict[str, dict[str, list[Curve]]]]:
    """RL stage → metric → arm → a smoothed curve per seed, for the stages that differ between arms."""
    found: dict[str, dict[str, dict[str, list[Curve]]]] = {}
    for stage in dict.fromkeys(name for run in runs for name in run.stages):
        paths = [(run.arm, path) for run in runs if (path := _path(run.stages.get(stage, {}))) is not None]
        if len({path for _, path in paths}) < 2:
            continue
        for arm, path in paths:
            steps = _steps(path / "logs" / "metrics.jsonl")
            if not steps or "reward" not in steps[-1]:
                continue
            for metric in _METRICS:
                if curve := _curve(steps, metric):
                    found.setdefault(stage, {}).setdefault(metric, {}).setdefault(arm, []).append(curve)
    return found


def _steps(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _curve(steps: Sequence[Mapping[str, Any]], metric: str) -> Curve:
    known = [(float(row["step"]), float(row[metric])) for row in steps if isinstance(row.get(metric), int | float)]
    known = [point for point in known if point[1] == point[1]]
    every = max(1, len(known) // _POINTS)
    return list(zip([x for x, _ in known], smooth([y for _, y in known]), strict=True))[::every]


def over_seeds(found: Sequence[Curve]) -> tuple[list[float], list[float], list[float], list[float]]:
    """x, mean, smallest and largest over the seeds at the steps that all of them have."""
    values = [dict(curve) for curve in found]
    xs = sorted(set.intersection(*(set(one) for one in values)))
    columns = [[one[x] for one in values] for x in xs]
    return xs, [sum(c) / len(c) for c in columns], [min(c) for c in columns], [max(c) for c in columns]


def differing_settings(runs: Sequence[ArmRun]) -> dict[str, dict[str, str]]:
    """Setting → arm → value as text, for the settings that are not the same in all arms ("" where an arm lacks it)."""
    arms = {run.arm: run for run in reversed(runs) if run.stages}  # the first run of each arm
    flat = {
        arm: {
            f"{stage}.{key}": value
            for stage, found in run.stages.items()
            for key, value in _flat(found.get("settings") or {})
        }
        for arm, run in arms.items()
    }
    keys = dict.fromkeys(key for values in reversed(flat.values()) for key in values)
    table = {key: {arm: values.get(key, "") for arm, values in flat.items()} for key in keys}
    return {key: row for key, row in table.items() if len(set(row.values())) > 1}


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(node, ensure_ascii=False) if not isinstance(node, str) else node


def lifts(runs: Sequence[ArmRun]) -> dict[str, dict[str, float]]:
    """Arm → ``change``, ``known``, ``new``, ``style``, ``skill`` of its last stage with an evaluated predecessor: means
    over its runs; arms whose reports don't have these are absent."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        stages = (run.summary.get("attribution") or {}).get("stages") or []
        if stages and (style := stages[-1]["style"]):
            parts = {"change": style["change"]["value"], **{name: style[name]["value"] for name in ("style", "skill")}}
            if sharpening := stages[-1]["sharpening"]:
                parts |= {name: sharpening[name]["effect"] for name in ("known", "new")}
            found.setdefault(run.arm, []).append(parts)
    return {
        arm: {name: sum(row[name] for row in rows) / len(rows) for name in rows[0] if all(name in row for row in rows)}
        for arm, rows in found.items()
    }
