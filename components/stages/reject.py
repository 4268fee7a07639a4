"""Stage: rejection sampling – what the RL policy does right becomes the data of the second SFT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components.artifacts import write_json, write_jsonl
from components.rng import stream
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.shared import CHUNK, load_policy, read_tasks, sample_all
from components.types import Example, Rollout, Task

TAKES = {"model": "model", "data": "data"}
GIVES = ("examples",)


def reject(
    inputs: Inputs,
    out: Out,
    *,
    accuracy: Any,
    language: Callable[[Task, Rollout], float],
    engine: Callable[..., Any],
    environment: Any,
    prompts: int = 4000,
    samples: int = 4,
    max_new_tokens: int = 80,
    temperature: float = 1.0,
    per_prompt: int = 2,
    per_cell: float = 2.0,
    longest: float | None = None,
    checkpoint_every: int = CHUNK,
) -> dict[str, float]:
    """Sample fresh prompts; write ``kept.jsonl`` (token-exact examples) and ``counts.json`` (why the rest was dropped).

    Kept: right, ended by itself, in the target language throughout, not a repetition of another sample of the prompt;
    at most ``per_prompt`` a prompt, and at most ``per_cell`` times the mean a family and level.

    Args:
        longest: right samples of more tokens than this times the shortest right one of their prompt are dropped, and
            the shorter ones are taken first; None keeps all lengths. For agents: what succeeds without a detour.
        checkpoint_every: prompts that are sampled before their samples are kept; a crash loses no more.
    """
    policy = load_policy(inputs, engine)
    tasks = read_tasks(inputs, "fresh")
    stream(out.seed, out.name, "prompts").shuffle(tasks)
    tasks = tasks[:prompts]
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    rollouts = sample_all(policy, tasks, samples, sampling, environment, out, "samples", checkpoint_every)
    reasons: Counter[str] = Counter()
    kept: list[tuple[Task, Rollout]] = []
    for task, group in zip(tasks, rollouts, strict=True):
        good = _short(_readable(task, group, accuracy, language, reasons), longest, reasons)
        kept += [(task, rollout) for rollout in good[:per_prompt]]
    balanced = _balance(kept, per_cell, reasons)
    if out.peers.is_main:
        write_jsonl(out.path / "kept.jsonl", [_example(task, rollout).to_json() for task, rollout in balanced])
        write_json(
            out.path / "counts.json", {"sampled": len(tasks) * samples, "kept": len(balanced), "dropped": dict(reasons)}
        )
    return {
        "sampled": float(len(tasks) * samples),
        "kept": float(len(balanced)),
        **{f"dropped/{reason}": float(n) for reason, n in sorted(reasons.items())},
    }


def _readable(
    task: Task,
    group: Sequence[Rollout],
    accuracy: Any,
    language: Callable[[Task, Rollout], float],
    reasons: Counter[str],
) -> list[Rollout]:
    found: dict[tuple[int, ...], Rollout] = {}
    for rollout in group:
        if rollout.finish != "stop":
            reasons["cut off" if rollout.finish == "length" else "failed"] += 1
        elif accuracy(task, rollout) < 1.0:
            reasons["wrong or badly formed"] += 1
        elif language(task, rollout) < 1.0:
            reasons["mixed language"] += 1
        elif rollout.tokens in found:
            reasons["repeated"] += 1
        else:
            found[rollout.tokens] = rollout
    return list(found.values())


def _short(rollouts: list[Rollout], longest: float | None, reasons: Counter[str]) -> list[Rollout]:
    """Those not much longer than the shortest, shorter ones first."""
    if longest is None or not rollouts:
        return rollouts
    ordered = sorted(rollouts, key=lambda rollout: len(rollout.tokens))
    short = [rollout for rollout in ordered if len(rollout.tokens) <= longest * len(ordered[0].tokens)]
    reasons["longer than need be"] += len(ordered) - len(short)
    return short


def _balance(kept: list[tuple[Task, Rollout]], per_cell: float, reasons: Counter[str]) -> list[tuple[Task, Rollout]]:
    """At most ``per_cell`` times the mean number of a cell."""
    cells = {task.cell for task, _ in kept}
    limit = max(1, round(per_cell * len(kept) / max(1, len(cells))))
    seen: Counter[str] = Counter()
    balanced = []
    for task, rollout in kept:
        seen[task.cell] += 1
        if seen[task.cell] <= limit:
            balanced.append((task, rollout))
    reasons["balance"] += len(kept) - len(balanced)
    return balanced


def _example(task: Task, rollout: Rollout) -> Example:
    return Example(
        task.id, task.messages, rollout.response, f"rejection/{task.cell}", rollout.tokens, rollout.action_mask
    )


def reject_check(
    settings: Mapping[str, Any], inputs: Mapping[str, str], processes: int, contents: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Whether the data are known to have no fresh prompts."""
    if contents.get("data", {}).get("tasks/fresh.jsonl") == 0:
        return ["the data leave no fresh prompts to sample. Fix: give more rows, or a larger fresh_fraction"]
    return []
