"""How often a policy solves each of the environments: the stage ``profile``, with a cell for each task."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.build import ALLOWED, build, stage_specs
from flows.chat import find_model
from flows.compose import compose


def measured(built: Any, options: argparse.Namespace, console: Any) -> tuple[Any, dict[str, Any]]:
    """(what is neither too easy nor too hard, facts for the report); each environment knows its pass rate.

    Raises:
        BadInput: no such model, or settings that don't exist.
    """
    from components.environments.from_trajectories.rows import Refusal, task_row

    model = find_model(Path("artifacts"), str(options.model))
    low, high = options.rates
    kept, refused = [], list(built.refused)
    for shell in (True, False):
        group = [environment for environment in built.environments if (environment.toolset == "shell") is shell]
        rates = _rates([task_row(environment, 0.0) for environment in group], model, shell, options) if group else {}
        for environment in group:
            rate = rates[task_row(environment, 0.0)["id"]]
            known = replace(environment, pass_rate=rate)
            reason = "too_hard" if rate <= low else "too_easy" if rate >= high else None
            if reason is None:
                kept.append(known)
            else:
                detail = f"the policy solves it in {rate:.0%} of {options.samples} episodes"
                refused.append(Refusal(environment.id, environment.where, reason, detail))
    console.print(
        f"pass rates of {model}: {options.samples} episodes of each of {len(built.environments)} tasks", markup=False
    )
    facts = {"model": str(model), "samples": options.samples, "rates": [low, high]}
    return replace(built, environments=kept, refused=refused), facts


def _rates(rows: Sequence[dict[str, Any]], model: Path, shell: bool, options: argparse.Namespace) -> dict[str, float]:
    from components.artifacts import read_json, write_jsonl
    from components.runtime import Out, StageArtifact
    from components.stages.profile import profile
    from components.types import Message, Task

    tools = f"environment={'agent_tags_shell' if shell else 'agent_tags'}"
    config = compose(["pipeline=agent_tasks", "data.path=unused", tools, *options.set, f"seed={options.seed}"])
    [spec] = [spec for spec in stage_specs(config) if spec.name == "profile"]
    settings = build({**spec.settings, "samples": options.samples, "hopeless": -1.0}, allow=ALLOWED)
    tasks = [
        Task(row["id"], (Message("user", row["prompt"]),), None, "state", row["id"], 0, "reasoning", row["meta"])
        for row in rows
    ]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        for name in ("policy", "data/tasks", "out"):
            (place / name).mkdir(parents=True)
        (place / "policy/model").symlink_to(model.resolve())
        write_jsonl(place / "data/tasks/profile.jsonl", [task.to_json() for task in tasks])
        inputs = {name: StageArtifact(name, "", place / name, "") for name in ("data",)}
        inputs["model"] = StageArtifact("policy", "", place / "policy", "")
        profile(inputs, Out(place / "out", "profile", options.seed), **settings)
        cells = read_json(place / "out/profile.json")
    return {cell.rpartition("/")[0]: entry["pass_rate"] for cell, entry in cells.items()}
