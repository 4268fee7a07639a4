"""How much of a lift in accuracy each part of a pipeline owns, and of what kind the lift is.

Four questions, each answered on the prompts that both evaluations have: did a stage make likely what the model could
already do, or did it teach something new (`sharpening`); did it change how the model answers, or how well it does so
(`style_and_skill`); what did each stage of a chain add (`shares`); and how much of it would the same compute have
bought elsewhere (`against_control`). Rows are those of an evaluation's ``answers.parquet``; greedy answers are left
out, and so are prompts that are no reasoning tasks. Everything returned is JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from components.evaluation.intervals import Change, mean_estimate, paired_change, t_quantile
from components.evaluation.metrics import pass_at_k
from components.evaluation.styles import brief_below, style_of
from components.evaluation.summary import compare, is_right

Row = Mapping[str, Any]
Rows = Iterable[Row]
Address = tuple[int | str, ...]
MOST_TRIES = 16


@dataclass(frozen=True)
class Evaluated:
    """Answers of one model, and the evaluated stage that it comes after (`lineage.incumbent`; None for the first)."""

    stage: str
    parent: str | None
    rows: Sequence[Row]


def attribute(evaluations: Sequence[Evaluated], *, address: Address = (0,)) -> dict[str, Any]:
    """All that can be said of a run's evaluations.

    Returns:
        ``stages``: for each model with a parent, ``stage``, ``parent``, ``sharpening`` (see there) and ``style`` (of
        `style_and_skill`); ``chain``: `shares` along the longest line of parents; ``controls``: ``start``, ``stage``,
        ``control`` and `against_control` of models with the same parent, the first of them, and each that came of it,
        as the treatment.
    """
    known = {evaluation.stage: evaluation for evaluation in evaluations}
    treated: dict[str, Evaluated] = {}
    stages, controls = [], []
    for after in evaluations:
        before = known.get(after.parent or "")
        if before is None:
            continue
        where = (*address, before.stage, after.stage)
        stages.append(
            {
                "stage": after.stage,
                "parent": before.stage,
                "sharpening": sharpening(before.rows, after.rows, address=where),
                "style": style_and_skill(before.rows, after.rows),
            }
        )
        first = treated.setdefault(before.stage, after)
        for other in evaluations if first is not after else ():
            if first.stage in _ancestry(other.stage, known):
                found = against_control(before.rows, other.rows, after.rows, address=(*where, other.stage))
                controls.append({"start": before.stage, "stage": other.stage, "control": after.stage, **found})
    line = [known[stage] for stage in _longest_line(known)]
    return {
        "stages": stages,
        "chain": shares([(e.stage, e.rows) for e in line], address=address),
        "controls": controls,
    }


def sharpening(before: Rows, after: Rows, *, address: Address = (0,)) -> dict[str, Any] | None:
    """Whether a stage made likely what the model could already do, or what it could not.

    Two views. ``pass@1`` against ``pass@k`` (k: samples of each prompt that both have, 16 at most): what only sharpens
    lifts the first and leaves the second. And the lift in pass@1 split over prompts: ``new`` is the part on prompts
    that the earlier model did not solve in ``tries`` = k/2 samples, ``known`` the rest. The half of the samples that
    sorts a prompt is not the half its earlier accuracy is taken from (else luck would look like learning), and both
    ways round are averaged, so that known + new = pass@1's change where the number of samples is even.

    Returns:
        ``k``, ``tries``, ``pass@1``, ``pass@k``, ``known``, ``new`` (each effect, low, high, p, n), ``unsolved`` (share
        of prompts not solved in ``tries`` samples) and ``new_share`` = new / (known + new), None unless the whole is
        positive beyond chance. None with fewer than two samples or no common prompt.

    Source: pass@k as the ceiling that sharpening cannot lift, arXiv:2504.13837.
    """
    old, new = _prompts(before), _prompts(after)
    common = sorted(old.keys() & new.keys())
    k = min((len(prompt) for side in (old, new) for prompt in (side[t] for t in common)), default=0)
    if k < 2:
        return None
    shown = min(k, MOST_TRIES)
    changes = {
        f"pass@{tries}": _change(
            {t: pass_at_k(len(old[t]), sum(map(is_right, old[t])), tries) for t in common},
            {t: pass_at_k(len(new[t]), sum(map(is_right, new[t])), tries) for t in common},
            (*address, f"pass@{tries}"),
        )
        for tries in (1, shown)
    }
    parts: dict[str, dict[str, float]] = {"known": {}, "new": {}}
    half, unsolved = k // 2, 0.0
    for task in common:
        right = [float(is_right(row)) for row in old[task][: 2 * half]]
        reached = sum(map(is_right, new[task])) / len(new[task])
        values = {"known": 0.0, "new": 0.0}
        for sorts, measures in ((right[:half], right[half:]), (right[half:], right[:half])):
            kind = "known" if any(sorts) else "new"
            values[kind] += (reached - sum(measures) / half) / 2
            unsolved += (kind == "new") / 2 / len(common)
        for kind, value in values.items():
            parts[kind][task] = value
    nothing = dict.fromkeys(common, 0.0)
    split = {kind: _change(nothing, values, (*address, kind)) for kind, values in parts.items()}
    whole = split["known"]["effect"] + split["new"]["effect"]
    proven = changes["pass@1"]["low"] > 0 and whole > 0
    return {
        "k": shown,
        "tries": half,
        **changes,
        **split,
        "unsolved": unsolved,
        "new_share": split["new"]["effect"] / whole if proven else None,
    }


def style_and_skill(before: Rows, after: Rows) -> dict[str, Any] | None:
    """Accuracy conditional on the response style, and how much of its change is a change of style.

    Styles are those of `styles.style_of`. Within each cell (family and level), with P the share of a style and a the
    accuracy in it, Δ(Σ P·a) = Σ ΔP·ā + Σ P̄·Δa, bars for the mean of before and after: the first sum is ``style``, the
    second ``skill``; both are averaged over prompts, and add up to the change. Where one side never answers in a style,
    its accuracy there is taken to be the other's: all of that is style.

    Returns:
        ``change``, ``style`` and ``skill`` as {value, low, high} (delete-one-prompt jackknife, Student's t), ``styles``
        name → {share, accuracy}, each a pair (before, after), accuracy None where the style does not occur. None
        without common prompts.

    Source: Kitagawa 1955, "Components of a difference between two rates".
    """
    old, new = _prompts(before), _prompts(after)
    common = sorted(old.keys() & new.keys())
    if not common:
        return None
    short = brief_below(row for task in common for row in (*old[task], *new[task]))
    sides = [
        {task: [(style_of(row, short), is_right(row)) for row in side[task]] for task in common} for side in (old, new)
    ]
    cells: dict[str, list[str]] = {}
    for task in common:
        cells.setdefault(f"{old[task][0]['family']}/{old[task][0]['level']}", []).append(task)
    whole = {cell: _decompose(tasks, sides) for cell, tasks in cells.items()}

    def total(but: str = "", without: tuple[float, float] = (0.0, 0.0), n: int = len(common)) -> tuple[float, float]:
        parts = [
            (len(cells[c]) - (c == but), without if c == but else whole[c]) for c in cells if len(cells[c]) > (c == but)
        ]
        return sum(w * p[0] for w, p in parts) / n, sum(w * p[1] for w, p in parts) / n

    value = total()
    left_out = [
        total(cell, _decompose([t for t in tasks if t != task], sides), len(common) - 1)
        for cell, tasks in cells.items()
        for task in tasks
        if len(common) > 1
    ]
    return {
        "change": _jackknife(sum(value), [sum(pair) for pair in left_out]),
        "style": _jackknife(value[0], [pair[0] for pair in left_out]),
        "skill": _jackknife(value[1], [pair[1] for pair in left_out]),
        "styles": _by_style(sides),
    }


def shares(chain: Sequence[tuple[str, Rows]], *, address: Address = (0,)) -> list[dict[str, Any]]:
    """What each stage of a chain added to pass@1.

    Args:
        chain: stage and rows, from the first model to the last.

    Returns:
        For every stage but the first: ``stage``, ``change`` (paired, against the one before) and ``share`` of the whole
        change from first to last, None unless that is positive beyond chance. Shares add up to 1; one that lost
        something has a negative one.
    """
    known = [(stage, _prompts(rows)) for stage, rows in chain]
    if len(known) < 2:
        return []
    common = set.intersection(*(set(prompts) for _, prompts in known))
    rates = [(stage, {t: _rate(prompts[t]) for t in common}) for stage, prompts in known]
    if not common:
        return []
    whole = _change(rates[0][1], rates[-1][1], (*address, "chain"))
    found = []
    for (_, before), (stage, after) in pairwise(rates):
        change = _change(before, after, (*address, "chain", stage))
        share = change["effect"] / whole["effect"] if whole["low"] > 0 else None
        found.append({"stage": stage, "change": change, "share": share})
    return found


def against_control(start: Rows, treated: Rows, control: Rows, *, address: Address = (0,)) -> dict[str, Any]:
    """What a treatment adds to pass@1 over what a control adds, both from the same start.

    Returns:
        ``treatment`` and ``control_change`` (each against the start), ``difference`` (treatment − control, paired),
        ``owned`` = difference / treatment: the share of the treatment's lift that the control does not explain, None
        unless the treatment's lift is positive beyond chance; and ``metrics``, `summary.compare` from control to
        treatment.
    """
    start, treated, control = list(start), list(treated), list(control)
    sides = [{task: _rate(prompt) for task, prompt in _prompts(rows).items()} for rows in (start, treated, control)]
    common = set.intersection(*map(set, sides))
    first, second, third = ({task: side[task] for task in common} for side in sides)
    treatment = _change(first, second, (*address, "treatment"))
    difference = _change(third, second, (*address, "difference"))
    return {
        "treatment": treatment,
        "control_change": _change(first, third, (*address, "control")),
        "difference": difference,
        "owned": difference["effect"] / treatment["effect"] if treatment["low"] > 0 else None,
        "metrics": compare(control, treated, address=(*address, "metrics")),
    }


def _prompts(rows: Rows) -> dict[str, list[Row]]:
    """Sampled answers to reasoning tasks by prompt, in the order of their numbers."""
    prompts: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("sample", 0) >= 0 and row["kind"] == "reasoning":
            prompts.setdefault(row["task_id"], []).append(row)
    return {task: sorted(prompt, key=lambda row: row.get("sample", 0)) for task, prompt in prompts.items()}


def _rate(prompt: Sequence[Row]) -> float:
    return sum(map(is_right, prompt)) / len(prompt)


def _change(before: Mapping[str, float], after: Mapping[str, float], address: Address) -> dict[str, float]:
    found = paired_change(before, after, address=address)
    return (found or Change(0.0, 0.0, 0.0, 1.0, 0)).to_json()


_Judged = Mapping[str, Sequence[tuple[str, bool]]]


def _decompose(tasks: Sequence[str], sides: Sequence[_Judged]) -> tuple[float, float]:
    """(style, skill) of one cell; every prompt counts the same, whatever the number of its samples."""
    if not tasks:
        return 0.0, 0.0
    share, right = _weigh(tasks, sides[0]), _weigh(tasks, sides[1])
    style = skill = 0.0
    for name in sorted(share.keys() | right.keys()):  # in one order, for the sums' last digits
        p, q = share.get(name, (0.0, 0.0)), right.get(name, (0.0, 0.0))
        a = p[1] / p[0] if p[0] else q[1] / q[0]
        b = q[1] / q[0] if q[0] else a
        style += (q[0] - p[0]) * (a + b) / 2
        skill += (q[0] + p[0]) / 2 * (b - a)
    return style, skill


def _weigh(tasks: Sequence[str], side: _Judged) -> dict[str, tuple[float, float]]:
    """Style → (share of the answers, share that has this style and is right)."""
    found: dict[str, tuple[float, float]] = {}
    for task in tasks:
        for name, right in side[task]:
            share, good = found.get(name, (0.0, 0.0))
            weight = 1 / len(side[task]) / len(tasks)
            found[name] = share + weight, good + weight * right
    return found


def _by_style(sides: Sequence[_Judged]) -> dict[str, dict[str, list[float | None]]]:
    weighed = [_weigh(list(side), side) for side in sides]
    names = sorted(sorted(set().union(*weighed)), key=lambda name: -sum(w.get(name, (0.0,))[0] for w in weighed))
    return {
        name: {
            "share": [w.get(name, (0.0, 0.0))[0] for w in weighed],
            "accuracy": [w[name][1] / w[name][0] if name in w else None for w in weighed],
        }
        for name in names
    }


def _jackknife(value: float, left_out: Sequence[float]) -> dict[str, float]:
    """Interval from the values with one prompt left out each: half-width t·√((n−1)/n Σ(θᵢ − θ̄)²)."""
    n = len(left_out)
    if n < 2:
        return {"value": value, "low": -1.0, "high": 1.0}
    middle = mean_estimate(left_out).value
    half = t_quantile(n - 1) * ((n - 1) / n * sum((v - middle) ** 2 for v in left_out)) ** 0.5
    return {"value": value, "low": value - half, "high": value + half}


def _ancestry(stage: str, known: Mapping[str, Evaluated]) -> list[str]:
    """A stage, its parent, that one's parent, and so on."""
    line, parent = [stage], known[stage].parent
    while parent is not None and parent in known and parent not in line:
        line.append(parent)
        parent = known[parent].parent
    return line


def _longest_line(known: Mapping[str, Evaluated]) -> list[str]:
    """Stages from one without an evaluated parent to the end of the longest line; of equal ones the last."""
    lines: dict[str, list[str]] = {}

    def line(stage: str) -> list[str]:
        if stage not in lines:
            parent = known[stage].parent
            lines[stage] = [*(line(parent) if parent is not None and parent in known else []), stage]
        return lines[stage]

    return max(map(line, known), key=len, default=[])
