"""Rollouts of a step reduced to what the checks need: one small record per group, a few hundred bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from components.evaluation.doctor.text import marks

Row = Mapping[str, Any]
# Terms that say whether an answer is right, the first that a rollout has; all others are cheaper to satisfy.
TRUTH = ("accuracy", "completion", "correct", "rule")


def truth(row: Row) -> float | None:
    """How right the rollout was, by the first of `TRUTH` that was scored; None where none was."""
    return next((float(v) for name in TRUTH if (v := row.get(f"term.{name}")) is not None), None)


@dataclass(frozen=True, slots=True)
class Pull:
    """Sums of squares and products within a group among rollouts that are equally right: what x is worth beyond it."""

    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0
    dof: int = 0

    @classmethod
    def of(cls, xs: Sequence[float], ys: Sequence[float]) -> Pull:
        if len(xs) < 2:
            return cls()
        mx, my = fmean(xs), fmean(ys)
        dx, dy = [x - mx for x in xs], [y - my for y in ys]
        return cls(
            sum(a * a for a in dx), sum(a * b for a, b in zip(dx, dy, strict=True)), sum(b * b for b in dy), len(xs) - 1
        )

    def __add__(self, other: Pull) -> Pull:
        return Pull(self.xx + other.xx, self.xy + other.xy, self.yy + other.yy, self.dof + other.dof)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One prompt's rollouts of one step; failed and abstained ones are left out of all but ``n``.

    Attributes:
        cell: ``family/level``, within which means are compared.
        spread: largest minus smallest reward.
        truth: mean of `truth`, None where no rollout has one.
        terms: mean of every raw term.
        variance: of the reward, within the group.
        distinct: number of different responses.
        marked: rollouts by mark, see `marks`.
        pays: mark → mean reward of the marked minus that of the others, where the group has both.
        length_pull: of length on reward, among equally right rollouts.
        term_pull: term → of the term on the truth.
    """

    step: int
    task_id: str
    cell: str
    kind: str
    n: int
    scored: int
    reward: float
    variance: float
    spread: float
    truth: float | None
    terms: Mapping[str, float]
    length: float
    truncated: int
    distinct: int
    marked: Mapping[str, int]
    pays: Mapping[str, float]
    length_pull: Pull
    term_pull: Mapping[str, Pull]

    def share(self, mark: str) -> float:
        """Share of the rollouts with a mark."""
        return self.marked.get(mark, 0) / self.n


def digest(rows: Iterable[Row], single: Callable[[str], bool] = lambda task: False) -> list[GroupView]:
    """Views of the groups of some rollouts, in the order they come.

    Args:
        rows: records as ``rollouts/*.parquet`` holds them; the same task drawn twice in a step counts as one group.
        single: whether a task, by id, is known to have one value as its answer.
    """
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((int(row["step"]), str(row["task_id"])), []).append(row)
    return [_view(step, task, members, single(task)) for (step, task), members in groups.items()]


def _view(step: int, task: str, members: list[Row], single: bool) -> GroupView:
    scored = [row for row in members if row.get("outcome", "scored") == "scored"]
    totals = [float(row["total"]) for row in scored]
    truths = [value for row in scored if (value := truth(row)) is not None]
    columns = {name: [row[name] for row in scored if row[name] is not None] for name in members[0] if _is_term(name)}
    found = [marks(str(row["response"]), str(row["finish"]), single=single) for row in members]
    marked = Counter(name for names in found for name in names)
    first, mean = members[0], fmean(totals) if totals else 0.0
    return GroupView(
        step=step,
        task_id=task,
        cell=f"{first['family']}/{first['level']}",
        kind=str(first.get("kind", "reasoning")),
        n=len(members),
        scored=len(scored),
        reward=mean,
        variance=fmean([(t - mean) ** 2 for t in totals]) if totals else 0.0,
        spread=max(totals) - min(totals) if totals else 0.0,
        truth=fmean(truths) if truths else None,
        terms={name.removeprefix("term."): fmean(values) for name, values in columns.items() if values},
        length=fmean([float(row["length"]) for row in members]),
        truncated=sum(row["finish"] == "length" for row in members),
        distinct=len({row["response"] for row in members}),
        marked=marked,
        pays={name: pay for name in marked if (pay := _pay(members, found, name)) is not None},
        length_pull=_length_pull(scored),
        term_pull=_term_pulls(scored, [name for name, values in columns.items() if len(values) == len(scored)]),
    )


def _is_term(name: str) -> bool:
    return name.startswith("term.")


def _pay(members: Sequence[Row], found: Sequence[frozenset[str]], mark: str) -> float | None:
    pairs = [(mark in names, float(row["total"])) for row, names in zip(members, found, strict=True)]
    have, lack = [t for marked, t in pairs if marked], [t for marked, t in pairs if not marked]
    return fmean(have) - fmean(lack) if have and lack else None


def _length_pull(scored: Sequence[Row]) -> Pull:
    whole = Pull()
    for right in (True, False):
        part = [row for row in scored if ((truth(row) or 0.0) >= 0.5) == right]
        whole = whole + Pull.of([float(row["length"]) for row in part], [float(row["total"]) for row in part])
    return whole


def _term_pulls(scored: Sequence[Row], names: Sequence[str]) -> dict[str, Pull]:
    truths = [truth(row) for row in scored]
    if not scored or any(value is None for value in truths):
        return {}
    ys = [float(value or 0.0) for value in truths]
    return {name.removeprefix("term."): Pull.of([float(row[name]) for row in scored], ys) for name in names}
