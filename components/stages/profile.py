"""Stage: pass rate of a policy per task cell – where the curriculum starts, and where RL would find nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from components.artifacts import write_json
from components.evaluation.metrics import pass_at_k
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.shared import CHUNK, by_cell, load_policy, mean, read_tasks, sample_all

TAKES = {"model": "model", "data": "data"}
GIVES = ("profile",)


def profile(
    inputs: Inputs,
    out: Out,
    *,
    accuracy: Any,
    engine: Callable[..., Any],
    environment: Any,
    samples: int = 8,
    max_new_tokens: int = 80,
    temperature: float = 1.0,
    hopeless: float = 0.02,
    checkpoint_every: int = CHUNK,
) -> dict[str, float]:
    """Sample every task of the ``profile`` split; write ``profile.json``: cell → pass_rate, pass_at_k, n, k.

    A family whose easiest level is solved less often than ``hopeless`` is named: groups without a right answer give RL
    no signal, so it needs more cold-start traces or an easier level before RL spends its steps.

    Args:
        checkpoint_every: prompts that are sampled before their samples are kept; a crash loses no more.
    """
    policy = load_policy(inputs, engine)
    tasks = [task for task in read_tasks(inputs, "profile") if task.kind == "reasoning"]
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    rollouts = sample_all(policy, tasks, samples, sampling, environment, out, "profile", checkpoint_every)
    right = [[accuracy(task, r) for r in group] for task, group in zip(tasks, rollouts, strict=True)]
    cells = {
        cell: {
            "pass_rate": mean([mean(right[i]) for i in at]),
            "pass_at_k": mean([pass_at_k(samples, round(sum(right[i])), samples) for i in at]),
            "n": len(at),
            "k": samples,
        }
        for cell, at in by_cell(tasks).items()
    }
    if out.peers.is_main:
        write_json(out.path / "profile.json", cells)
    easiest: dict[str, float] = {}
    for cell, entry in cells.items():
        easiest.setdefault(cell.split("/")[0], entry["pass_rate"])
    for family, rate in easiest.items():
        if rate < hopeless:
            out.say(f"{family}: solved {rate:.1%} of the time at its easiest level: no signal for RL. Fix: more traces")
    return {
        "pass_rate": mean([e["pass_rate"] for e in cells.values()]),
        **{f"pass_rate/{c}": e["pass_rate"] for c, e in cells.items()},
    }


def profile_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns; ``pass_rate/FAMILY/LEVEL`` for what is in the data."""
    return ["pass_rate", "pass_rate/*"]
