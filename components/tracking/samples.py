"""Which of a stage's rollouts a person should look at: few, from all over the run, good ones beside bad ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.rng import derive

PER_STEP = 3
_FACTS = ("task_id", "family", "level", "kind", "finish", "length", "policy_version", "outcome", "gold", "answer")
_CALL = re.compile(r"<tool>([^<]*)</tool>(?:\s*<result>([^<]*)</result>)?")


@dataclass(frozen=True)
class Sample:
    """One rollout.

    Attributes:
        name: unique in its stage, the same whenever the stage is looked at.
        step: of RL; None for an evaluation's answer.
        facts: what it is about; scores: reward and its terms, or verdicts.
        tools: calls and results, in order.
    """

    name: str
    step: int | None
    prompt: str
    response: str
    facts: Mapping[str, Any]
    scores: Mapping[str, float]

    @property
    def tools(self) -> list[tuple[str, str]]:
        return [(call, result or "") for call, result in _CALL.findall(self.response)]


def choose_samples(folder: Path, n: int) -> list[Sample]:
    """About ``n`` samples of a stage's artifact; none of a stage without rollouts or answers.

    Of RL: from steps spread over the run, of each the best and the worst rollout of the group that differs most, and
    one more at random. Of an evaluation: right and wrong answers in equal number where there are both, of all families.
    """
    if n < 1:
        return []
    if (folder / "rollouts").is_dir():
        return list(_of_rl(sorted((folder / "rollouts").glob("*.parquet")), n))
    if (file := folder / "answers.parquet").is_file():
        return _of_evaluation(_read(file), n)
    return []


def _of_rl(files: Sequence[Path], n: int) -> Iterator[Sample]:
    count = max(1, n // PER_STEP)
    picked = (
        files if len(files) <= count else [files[round(i * (len(files) - 1) / max(1, count - 1))] for i in range(count)]
    )
    for file in dict.fromkeys(picked):
        by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in _read(file):
            by_step[row["step"]].append(row)
        for step, rows in list(by_step.items())[:1]:
            for place, row in _of_a_step(rows, step):
                scores = {"reward": row["total"]}
                scores |= {key.removeprefix("term."): value for key, value in row.items() if key.startswith("term.")}
                facts = {**_facts(row), "step": step}
                name = f"{step}/{row['task_id']}/{place}"
                yield Sample(name, step, row["prompt"], row["response"], facts, _numbers(scores))


def _of_a_step(rows: Sequence[dict[str, Any]], step: int) -> list[tuple[int, dict[str, Any]]]:
    """(place in the step, row) of the best and worst of the most telling group, and another."""
    scored = [(i, row) for i, row in enumerate(rows) if isinstance(row["total"], float)] or list(enumerate(rows))
    groups: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for item in scored:
        groups[item[1]["task_id"]].append(item)

    def total(item: tuple[int, dict[str, Any]]) -> float:
        return item[1]["total"] or 0.0

    group = max(groups.values(), key=lambda g: max(map(total, g)) - min(map(total, g)))
    chosen = {item[0]: item for item in (max(group, key=total), min(group, key=total))}
    rest = [item for item in scored if item[0] not in chosen]
    if rest:
        other = rest[derive("sample", step) % len(rest)]
        chosen[other[0]] = other
    return list(chosen.values())


def _of_evaluation(rows: Sequence[dict[str, Any]], n: int) -> list[Sample]:
    sides: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    taken: dict[tuple[bool, str], int] = defaultdict(int)
    order = sorted((r for r in rows if r["sample"] >= 0), key=lambda r: derive("sample", r["task_id"], r["sample"]))
    for row in order:
        right = row["correct"] >= 1 - 1e-6
        taken[right, row["family"]] += 1
        sides[right].append({**row, "_turn": taken[right, row["family"]]})
    half = max(n // 2, n - min(len(side) for side in sides.values()))
    found = [row for side in sides.values() for row in sorted(side, key=lambda r: r["_turn"])[:half]][:n]
    return [
        Sample(
            f"{row['task_id']}/{row['sample']}",
            None,
            row["prompt"],
            row["response"],
            _facts(row),
            _numbers({key: row.get(key) for key in ("correct", "format_ok", "language")}),
        )
        for row in found
    ]


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in _FACTS if row.get(key) not in (None, "")}


def _numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in scores.items() if value is not None and value == value}


def _read(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq  # heavy, and not needed by runs that are reused

    columns = [name for name in pq.read_schema(file).names if name not in ("tokens", "action_mask")]
    return pq.read_table(file, columns=columns).to_pylist()
