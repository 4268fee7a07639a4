"""Stage: evaluation of one model on the held-out prompts that no other stage has seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from components.artifacts import write_json
from components.evaluation.summary import summarise
from components.rewards.response import take_apart
from components.rollout.record import write_rows
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.shared import CHUNK, load_policy, read_tasks, sample_all
from components.types import Rollout, Task

TAKES = {"model": "model", "data": "data"}
GIVES = ("evaluation",)


def evaluate(
    inputs: Inputs,
    out: Out,
    *,
    accuracy: Any,
    format: Any,
    language: Any,
    engine: Callable[..., Any],
    environment: Any,
    split: str = "test",
    samples: int = 4,
    greedy: bool = True,
    max_new_tokens: int = 80,
    temperature: float = 1.0,
    top_p: float = 1.0,
    checkpoint_every: int = CHUNK,
) -> dict[str, float]:
    """Sample every prompt of the split; write ``answers.parquet`` (each answer, judged) and ``summary.json``.

    The same prompts and the same random addresses for every model, so that two stages are compared prompt by prompt.

    Args:
        samples: answers per prompt; pass@1 is their mean.
        greedy: one more answer per prompt at temperature 0, as sample number -1 (not part of pass@k).
        checkpoint_every: prompts that are sampled before their answers are kept; a crash loses no more.
    """
    policy = load_policy(inputs, engine)
    tasks = read_tasks(inputs, split)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p)
    address = (out.seed, "evaluate", split)
    drawn = sample_all(policy, tasks, samples, sampling, environment, out, "samples", checkpoint_every, address)
    if greedy:
        best = sample_all(
            policy,
            tasks,
            1,
            Sampling(max_new_tokens=max_new_tokens, temperature=0.0),
            environment,
            out,
            "greedy",
            checkpoint_every,
            address,
        )
        drawn = [(*group, *one) for group, one in zip(drawn, best, strict=True)]
    answers = [
        {
            "task_id": task.id,
            "family": task.family,
            "level": task.level,
            "kind": task.kind,
            "verifier": task.verifier,
            "held_out": str(task.meta.get("held_out", "")),
            "sample": number if number < samples else -1,
            "prompt": task.prompt,
            "gold": task.answer,
            "response": rollout.response,
            "answer": take_apart(rollout.response).answer,
            "correct": float(accuracy(task, rollout)),
            "format_ok": float(format(task, rollout)),
            "language": float(language(task, rollout)),
            "length": len(rollout.tokens),
            "finish": rollout.finish,
            **_agent(task, rollout),
        }
        for task, group in zip(tasks, drawn, strict=True)
        for number, rollout in enumerate(group)
    ]
    summary = summarise(answers)
    if out.peers.is_main:
        write_rows(out.path / "answers.parquet", answers)
        write_json(out.path / "summary.json", summary)
    return {name: entry["value"] for name, entry in summary["metrics"].items() if entry["value"] is not None}


def _agent(task: Task, rollout: Rollout) -> dict[str, Any]:
    """What an episode with tools took, of a task that says which tools it offers; nothing of any other."""
    if not isinstance(offered := task.meta.get("tools"), list):
        return {}
    return {
        "steps": rollout.info.get("steps", 0.0),
        "invalid_calls": rollout.info.get("tool_invalid", 0.0),
        "tools": len(offered),
        "steps_needed": int(task.meta.get("steps", 0)),
    }
