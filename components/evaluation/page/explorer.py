"""What the page's explorer holds: answers to the same prompts by every stage, and groups of training rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from components.evaluation.page.samples import clip, first_answers, prompt_of
from components.evaluation.page.sources import Node, Sources, terms
from components.evaluation.summary import is_right
from components.rng import stream

_OF_A_GROUP = 4  # rollouts shown: the best, the worst and others
_CHARACTERS = 1_500_000  # of all prompts and responses together
_LIMITS = (6000, 3000, 1500, 800, 400)  # characters of one response, the first that keeps to that


def explorer(sources: Sources, count: int, seed: int) -> list[dict[str, Any]]:
    """About ``count`` records: an equal part for every evaluation and every RL stage.

    Prompts are the same for all evaluations, so that one search finds what every stage said to it. Training rollouts
    come in groups spread evenly over the steps, of those whose rollouts earned different rewards where there are any;
    each with its best, its worst and others of it.
    """
    parts = len(sources.evaluations) + len(sources.rollouts)
    if not parts:
        return []
    each = max(1, count // parts)
    records = _answers(sources, each, seed)
    for stage, rows in sources.rollouts.items():
        records += _training(stage, rows, each, sources.nodes.get(stage), seed)
    longest = _fitting(records)
    for record in records:
        record["prompt"], record["response"] = clip(record["prompt"], longest), clip(record["response"], longest)
    return records


def _fitting(records: Sequence[Mapping[str, Any]]) -> int:
    lengths = [len(record[part]) for record in records for part in ("prompt", "response")]
    fits = (limit for limit in _LIMITS if sum(min(n, limit) for n in lengths) <= _CHARACTERS)
    return next(fits, _LIMITS[-1])


def _answers(sources: Sources, each: int, seed: int) -> list[dict[str, Any]]:
    tasks = sorted({row["task_id"] for evaluation in sources.evaluations for row in evaluation.rows})
    stream(seed, "report", "explorer").shuffle(tasks)
    answers = [first_answers(evaluation.rows) for evaluation in sources.evaluations]
    records = []
    for task in [task for task in tasks if all(task in rows for rows in answers)][:each]:
        for evaluation, rows in zip(sources.evaluations, answers, strict=True):
            prompt, gold = prompt_of(rows[task], sources)
            record = _record(evaluation.stage, "evaluation", rows[task], prompt, is_right(rows[task]))
            records.append(record | {"gold": gold})
    return records


def _training(
    stage: str, rows: Sequence[Mapping[str, Any]], each: int, node: Node | None, seed: int
) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, Any], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["step"], row["task_id"]].append(row)
    size = min(_OF_A_GROUP, max(map(len, groups.values()), default=1))
    keys = sorted(groups)
    wanted = max(1, each // size)
    rng = stream(seed, "report", "explorer", stage)
    stretches = [keys[i * len(keys) // wanted : (i + 1) * len(keys) // wanted] for i in range(wanted)]
    records = []
    for stretch in stretches:
        telling = [key for key in stretch if len({row["total"] for row in groups[key]}) > 1]
        if not (ready := telling or stretch):
            continue
        group = groups[rng.choice(ready)]
        ranked = sorted(group, key=lambda row: row["total"])
        middle = ranked[1:-1]
        ends = [ranked[-1], ranked[0]] if len(ranked) > 1 else ranked
        for row in [*ends, *rng.sample(middle, min(size - len(ends), len(middle)))]:
            records.append(_rollout(stage, row, group, weights_of(node, row)))
    return records


def _rollout(
    stage: str, row: Mapping[str, Any], group: Sequence[Mapping[str, Any]], weights: Mapping[str, float]
) -> dict[str, Any]:
    found = dict(terms(row))
    right = found["accuracy"] >= 1 - 1e-6 if "accuracy" in found else None
    more = {
        "reward": round(row["total"], 3),
        "step": row["step"],
        "terms": {name: round(value, 3) for name, value in found.items()},
        "weights": {name: weights[name] for name in found if name in weights},
        "group": sorted(round(other["total"], 3) for other in group),
    }
    if row.get("outcome", "scored") != "scored":
        more["outcome"] = f"{row['outcome']}: {row.get('reason') or 'no reason given'}"
    return _record(stage, "training", row, str(row.get("prompt", "")), right) | more


def weights_of(node: Node | None, row: Mapping[str, Any]) -> Mapping[str, float]:
    """Weights of the reward's terms for this rollout, as the stage's settings give them; empty where they don't."""
    reward = ((node.manifest.get("spec") or {}).get("settings") or {}).get("reward") if node else None
    while isinstance(reward, Mapping) and not isinstance(reward.get("weights"), Mapping):
        routes = reward.get("kinds") or reward.get("routes")
        reward = routes.get(row.get(reward.get("by", "kind"))) if isinstance(routes, Mapping) else None
    return {name: float(w) for name, w in reward["weights"].items()} if isinstance(reward, Mapping) else {}


def _record(stage: str, source: str, row: Mapping[str, Any], prompt: str, right: bool | None) -> dict[str, Any]:
    return {
        "stage": stage,
        "source": source,
        "task": row["task_id"],
        "family": row["family"],
        "level": row["level"],
        "right": right,
        "prompt": prompt,
        "response": row["response"],
        "length": row["length"],
        "finish": row["finish"],
    }
