"""The end of a sweep: arms × metrics with intervals over seeds, tests against one arm, and Pareto fronts.

Written as ``summary.json`` beside the sweep's record; `flows.sweep_table` prints it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem, did_you_mean
from flows.sweep.arms import ArmRuns, arm_runs
from flows.sweep.record import digest_of

ACCURACY = "pass@1"
# Against accuracy: what may be paid for it, and whether more of it is better.
TRADES = (("length", -1), ("unsafe_refused", 1), ("benign_answered", 1))
# Columns of the table, those the evaluations have; after them the largest k of pass@k.
COLUMNS = ("pass@1", "format_rate", "length", "unsafe_refused", "benign_answered")
FILE = "summary.json"
FIRST = "first"
USUAL = {"against": FIRST, "metric": ACCURACY}  # what is stored under the files' own names


def write_summary(artifacts: Path, sweep: str, against: str = FIRST) -> dict[str, Any]:
    """Compare the arms of a sweep; also in ``summary.json``, or, against another arm than the first, in a file of its
    own beside it.

    Args:
        against: the arm that others are tested against: "first" (as listed), "best" (by accuracy, chosen with the same
            figures that are then tested) or a label.

    Raises: BadInput for an ``against`` that is no arm.
    """
    found = summarise(arm_runs(artifacts, sweep), against)
    file = artifacts / "sweeps" / sweep / view_name(FILE, against=against)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, file)
    return found


def view_name(file: str, **chosen: str) -> str:
    """Name of a file of the sweep as somebody asked to see it; the file's own where nothing else was asked for.

    ``view_name("table.md", against="best")`` is ``table.against-best.md``. What can't stand in a name is replaced, and
    a digest keeps two apart.
    """
    stem, dot, ending = file.rpartition(".")
    for key, value in chosen.items():
        if value != USUAL[key]:
            plain = re.sub(r"[^A-Za-z0-9@._=-]+", "-", value)[:60]
            exact = "" if plain == value else f"-{digest_of(value)[:6]}"
            stem += f".{key}-{plain}{exact}"
    return f"{stem}{dot}{ending}"


def summarise(arms: Sequence[ArmRuns], against: str = FIRST) -> dict[str, Any]:
    """The summary as plain containers.

    Returns:
        ``arms``: each label, runs, seeds, objective, ``metrics`` name → {value, low, high, n, over: seeds or prompts}
        and ``against`` name → {effect, low, high, p, p_holm, n, over} (none for the arm tested against). ``reference``:
        its label. ``objective``: terms, direction, best (an arm) and its value. ``pareto``: each x, y, better, level
        and ``arms`` label → {on_front, odds, dominated_by, level_with}.
    """
    with_figures = [arm for arm in arms if arm.by_seed]
    reference = _reference(with_figures, against)
    names = _columns(with_figures)
    rows = [
        {
            "label": arm.label,
            "runs": arm.runs,
            "seeds": list(arm.by_seed),
            "objective": _objective(arm),
            "metrics": {name: estimate for name in names if (estimate := _estimate(arm, name))},
            "against": _against(reference, arm, names) if reference and arm is not reference else {},
        }
        for arm in arms
    ]
    _adjust(rows)
    fronts = [front for name, sign in TRADES if (front := _front(with_figures, name, sign))]
    return {
        "reference": reference.label if reference else None,
        "objective": _best(arms),
        "arms": rows,
        "pareto": fronts,
    }


def _objective(arm: ArmRuns) -> dict[str, Any] | None:
    from components.evaluation.arms import over_seeds  # numpy

    if not arm.objectives:
        return None
    values = dict(enumerate(arm.objectives.values()))
    return {**over_seeds(values, share=False).to_json(), "over": "seeds"}


def _best(arms: Sequence[ArmRuns]) -> dict[str, Any] | None:
    """What the objective is, and the arm with the best mean of it: {terms, direction, best, value}."""
    having = {arm.label: mean for arm in arms if (mean := _mean(arm.objectives)) is not None}
    if not having:
        return None
    one = next(arm for arm in arms if arm.label in having)
    best = (max if one.maximise else min)(having, key=having.__getitem__)
    direction = "maximise" if one.maximise else "minimise"
    return {"terms": list(one.terms), "direction": direction, "best": best, "value": having[best]}


def _reference(arms: Sequence[ArmRuns], against: str) -> ArmRuns | None:
    if against == FIRST or not arms:
        return arms[0] if arms else None
    if against == "best":
        return max(arms, key=lambda arm: _mean(arm.values(ACCURACY)) or float("-inf"))
    if (found := next((arm for arm in arms if arm.label == against), None)) is not None:
        return found
    known = [FIRST, "best", *(arm.label for arm in arms)]
    raise BadInput(Problem("report", "--against", "no such arm", got=against, fix=did_you_mean(against, known)))


def _columns(arms: Sequence[ArmRuns]) -> list[str]:
    present = {name for arm in arms for found in arm.by_seed.values() for name in found}
    several = [n for n in present if n.startswith("pass@") and n != ACCURACY and n.removeprefix("pass@").isdigit()]
    largest = [max(several, key=lambda name: int(name.partition("@")[2]))] if several else []
    return [name for name in (ACCURACY, *largest, *COLUMNS[1:]) if name in present]


def _estimate(arm: ArmRuns, metric: str) -> dict[str, Any] | None:
    from components.evaluation.arms import over_seeds  # numpy

    found = [metrics[metric] for metrics in arm.by_seed.values() if metric in metrics]
    if len(found) < 2:
        return {**found[0], "over": "prompts"} if found else None
    share = all(e["low"] >= 0 and e["high"] <= 1 for e in found)
    values = {i: e["value"] for i, e in enumerate(found)}
    return {**over_seeds(values, share=share).to_json(), "over": "seeds"}


def _against(reference: ArmRuns, arm: ArmRuns, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Tests over the seeds both have; with a single one over its prompts, where the answers are at hand."""
    from components.evaluation.arms import paired_by_seed

    changes = {name: paired_by_seed(_numbered(reference, name), _numbered(arm, name)) for name in names}
    found = {name: {**change.to_json(), "over": "seeds"} for name, change in changes.items() if change is not None}
    common = reference.answers.keys() & arm.answers.keys()
    if found or len(common) != 1:
        return found
    from components.evaluation.summary import compare

    [seed] = common
    tests = compare(_rows(reference.answers[seed]), _rows(arm.answers[seed]))
    keys = ("effect", "low", "high", "p", "n")
    return {name: {**{key: tests[name][key] for key in keys}, "over": "prompts"} for name in names if name in tests}


def _rows(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq  # heavy

    return pq.read_table(file).to_pylist()


def _numbered(arm: ArmRuns, metric: str) -> dict[Any, float]:
    return dict(arm.values(metric))


def _adjust(rows: Sequence[Mapping[str, Any]]) -> None:
    """Holm over every test of the table."""
    from components.evaluation.intervals import holm

    tests = [test for row in rows for test in row["against"].values()]
    for test, p in zip(tests, holm([test["p"] for test in tests]), strict=True):
        test["p_holm"] = p


def _front(arms: Sequence[ArmRuns], metric: str, sign: int) -> dict[str, Any] | None:
    """The arms by accuracy and one other metric; None with fewer than two that have both.

    Arms that are ``level`` (all have the same of the other metric) have nothing to trade.
    """
    from components.evaluation.arms import front_odds, pareto
    from components.evaluation.trade_offs import is_level, level_with

    axes = ((ACCURACY, 1), (metric, sign))
    having = [arm for arm in arms if all(arm.values(name) for name, _ in axes)]
    if len(having) < 2:
        return None
    signed = {arm.label: [{s: way * v for s, v in arm.values(name).items()} for name, way in axes] for arm in having}
    errors = {arm.label: [_standard_error(arm, name) for name, _ in axes] for arm in having}
    points = {label: [_mean(values) or 0.0 for values in metrics] for label, metrics in signed.items()}
    dominated, odds = pareto(points), front_odds(signed, errors, address=("sweep", metric))
    return {
        "x": ACCURACY,
        "y": metric,
        "better": {ACCURACY: "more", metric: "more" if sign > 0 else "less"},
        "level": is_level(points),
        "arms": {
            label: {
                "on_front": not dominated[label],
                "odds": odds[label],
                "dominated_by": dominated[label],
                "level_with": level_with(label, points),
            }
            for label in points
        },
    }


def _standard_error(arm: ArmRuns, metric: str) -> float:
    estimate = next(found[metric] for found in arm.by_seed.values() if metric in found)
    return (estimate["high"] - estimate["low"]) / (2 * 1.96)


def _mean(values: Mapping[Any, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None
