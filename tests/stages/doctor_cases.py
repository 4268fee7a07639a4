"""A tiny policy that knows the form, ends its answers and varies in what can be exploited; and RL stages on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from components.artifacts import read_jsonl, write_jsonl
from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.read import StageFiles, examine_stage
from components.models.optim import Muon
from components.rewards.mix import Mix
from components.runtime import Out, StageArtifact
from components.stages.rl import rl
from components.stages.sft import sft
from components.types import Example, Task


def teach(data: StageArtifact, base: StageArtifact, folder: Path) -> StageArtifact:
    """Fine-tune the base model on thoughts of 1 to 5 words and a random digit as answer; one in four gives two."""
    rng = random.Random(0)
    tasks = [Task.from_json(row) for row in read_jsonl(data.path / "tasks" / "train.jsonl")]
    examples = [
        Example(
            task.id,
            task.messages,
            f"<think>{' first' * rng.randint(1, 5)}</think>"
            + "".join(f"<answer>{rng.randint(0, 9)}</answer>" for _ in range(rng.choice([1, 1, 1, 2]))),
        )
        for task in (rng.choice(tasks) for _ in range(1500))
    ]
    made = folder / "examples"
    write_jsonl(made / "e.jsonl", [example.to_json() for example in examples])
    source = StageArtifact("examples", "k", made, "d")
    out = Out(folder / "taught", "taught", seed=0)
    sft({"model": base, "e": source}, out, files={"e": ["e.jsonl"]}, optimizer=Muon, epochs=3, batch_size=24, lr=1e-2)
    return StageArtifact("taught", "k", folder / "taught", "d")


def answers(rollout: Any) -> list[str]:
    """Texts of all answers."""
    return [part.partition("</answer>")[0].strip() for part in rollout.response.split("<answer>")[1:]]


def even(task: Any, rollout: Any) -> float:
    """Whether the only answer is an even digit: half of the taught policy's are."""
    return float(len(answers(rollout)) == 1 and answers(rollout)[0] in tuple("02468"))


def train(
    inputs: Mapping[str, StageArtifact],
    folder: Path,
    settings: Callable[..., dict[str, Any]],
    terms: Mapping[str, Any],
    weights: Mapping[str, float],
    seed: int = 3,
    **changes: Any,
) -> list[Finding]:
    """Run an RL stage with this reward and examine what it left."""
    given = {"max_new_tokens": 32, "lr": 2e-3, "quotas": {"reasoning": 8}, "group_size": 4, "steps": 30, **changes}
    reward = Mix(terms=terms, weights=weights, isolate=False)  # no processes: these terms are functions of a test
    rl(inputs, Out(folder, "rl", seed=seed), **settings(reward=reward, **given))
    files = StageFiles("rl", folder, settings={"max_new_tokens": given["max_new_tokens"]})
    return examine_stage(files, inputs["data"].path / "tasks" / "train.jsonl")[1]
