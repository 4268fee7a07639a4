"""Where the lift comes from: what each stage owns of it, and what stages that started from the same model did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from markupsafe import Markup

from components.evaluation.intervals import holm, paired_change
from components.evaluation.lift import pass_curve, sampled, split_lift, style_and_skill
from components.evaluation.metrics import pass_at_k
from components.evaluation.page.charts import Series, line_chart
from components.evaluation.page.sources import Evaluation, Node, Sources
from components.evaluation.summary import is_right


def controls(sources: Sources, seed: int) -> dict[str, Any]:
    """Figures of the section, empty parts where there is nothing to compare.

    Returns:
        ``steps`` – per evaluation after the first: what changed against the one before and of what it is made
        (see `split_lift`, `style_and_skill`), and its share of the whole way up (None if that is below a point);
        ``same_start`` – models trained from the same evaluated model, side by side; ``from`` and ``to`` name the ends.
    """
    shown = [evaluation for evaluation in sources.evaluations if sampled(evaluation.rows)]
    steps = [_step(a, b, seed) for a, b in zip(shown, shown[1:], strict=False)]
    steps = [step for step in steps if step is not None]
    way = sum(step["lift"]["total"]["value"] for step in steps)
    for step in steps:
        step["share"] = step["lift"]["total"]["value"] / way if way >= 0.01 else None
    return {
        "steps": steps,
        "same_start": _same_start(shown, sources.nodes, seed),
        "curves": {evaluation.stage: pass_curve(evaluation.rows) for evaluation in shown},
    }


def pass_chart(curves: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Markup:
    """pass@k over k, a line per stage, in doublings of k: lines that meet to the right know the same."""
    lines = []
    for i, (stage, curve) in enumerate(curves.items()):
        ks, found = list(curve), list(curve.values())
        lines.append(
            Series(
                stage,
                [float(k) for k in ks],
                [e["value"] for e in found],
                [e["low"] for e in found],
                [e["high"] for e in found],
                colour=i % 8,
            )
        )
    several = [line for line in lines if len(line.x) > 1]
    return line_chart(several, title="pass@k over k", share=True, x_label="k", doubling_x=True)


def _step(before: Evaluation, after: Evaluation, seed: int) -> dict[str, Any] | None:
    lift = split_lift(before.rows, after.rows)
    style = style_and_skill(before.rows, after.rows, address=(seed, "report", before.stage, after.stage))
    if lift is None or style is None:
        return None
    return {"stage": after.stage, "against": before.stage, "rl": after.rl, "lift": lift, "style": style}


def _same_start(shown: Sequence[Evaluation], nodes: Mapping[str, Node], seed: int) -> list[dict[str, Any]]:
    """Groups of evaluated models with the same nearest evaluated ancestor through the input ``model``."""
    by_stage = {evaluation.stage: evaluation for evaluation in shown}
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in shown:
        if (start := _start(evaluation.stage, by_stage.keys(), nodes)) is not None:
            groups.setdefault(start, []).append(evaluation)
    return [_group(by_stage[start], members, nodes, seed) for start, members in groups.items() if len(members) > 1]


def _start(stage: str, evaluated: Any, nodes: Mapping[str, Node]) -> str | None:
    at = stage
    while at in nodes and (at := nodes[at].parents.get("model", "")):
        if at in evaluated:
            return at
    return None


def _group(start: Evaluation, members: Sequence[Evaluation], nodes: Mapping[str, Node], seed: int) -> dict[str, Any]:
    rows = [_step(start, member, seed) for member in members]
    pairs = list(combinations(members, 2))
    tests = [_against(a, b, k, seed) for a, b in pairs for k in ("1", "n")]
    found = [test for test in tests if test is not None]
    for test, p in zip(found, holm([test["p"] for test in found]), strict=True):
        test["p_holm"] = p
        test["verdict"] = "same" if p >= 0.05 else "better" if test["effect"] > 0 else "worse"
    return {
        "start": start.stage,
        "members": [row | {"wall_s": nodes[row["stage"]].wall_s} for row in rows if row is not None],
        "tests": found,
    }


def _against(before: Evaluation, after: Evaluation, k: str, seed: int) -> dict[str, Any] | None:
    """Paired test of pass@1 or of pass@n, n the samples that every prompt of both has."""
    old, new = _right(before), _right(after)
    n = min((len(right) for right in (*old.values(), *new.values())), default=0)
    size = 1 if k == "1" else n
    if not n or (k == "n" and n == 1):
        return None
    change = paired_change(
        {task: pass_at_k(len(right), sum(right), size) for task, right in old.items()},
        {task: pass_at_k(len(right), sum(right), size) for task, right in new.items()},
        address=(seed, "report", "same-start", before.stage, after.stage, size),
    )
    return None if change is None else {"a": before.stage, "b": after.stage, "metric": f"pass@{size}"} | change.to_json()


def _right(evaluation: Evaluation) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for row in sampled(evaluation.rows):
        found.setdefault(row["task_id"], []).append(is_right(row))
    return found
