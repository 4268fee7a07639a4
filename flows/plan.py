"""``r1flow plan``: for every stage, reused or to build and why; nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from components.artifacts import ArtifactStore
from components.runtime import StageArtifact
from flows.source import digest_of, source_files
from flows.stage import StageSpec, explain, stage_key, targets


@dataclass(frozen=True)
class PlannedStage:
    """Attributes: key: None where it depends on a stage still to be built; why: the first reason to build it."""

    name: str
    inputs: Sequence[str]
    state: str
    why: str
    key: str | None


def make_plan(specs: Sequence[StageSpec], store: ArtifactStore) -> list[PlannedStage]:
    """What a run of these stages would do, in its order."""
    known: dict[str, StageArtifact] = {}
    plan = []
    for spec in specs:
        sources = list(dict.fromkeys(spec.inputs.values()))
        parents = {name: known.get(source) for name, source in spec.inputs.items()}
        pending = [source for source in sources if source not in known]
        why, key, state = explain(spec, parents, store), None, "to build"
        complete = {name: parent for name, parent in parents.items() if parent is not None}
        if not pending:
            key = stage_key(spec, complete, digest_of(source_files(targets(spec))))
            if (found := store.find(spec.name, key)) is not None:
                known[spec.name], state, why = found, "reused", ""
        else:
            more = f" and {len(pending) - 3} more" if len(pending) > 3 else ""
            why = f"after {', '.join(pending[:3])}{more}"
        plan.append(PlannedStage(spec.name, sources, state, why, key))
    return plan


def plan_table(pipeline: str, plan: Sequence[PlannedStage]) -> Any:
    """The plan for a person."""
    from rich.table import Table
    from rich.text import Text

    building = sum(stage.state != "reused" for stage in plan)
    title = f"pipeline {pipeline}: {len(plan)} stages, {building} to build, {len(plan) - building} reused"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("stage", "inputs", "state", "key", "why"):
        table.add_column(column, no_wrap=column in ("stage", "state", "key"), overflow="fold")
    for stage in plan:
        style = "cyan" if stage.state == "reused" else "yellow"
        inputs = ", ".join(stage.inputs) or "–"
        table.add_row(stage.name, inputs, Text(stage.state, style=style), (stage.key or "")[:10], Text(stage.why))
    return table
