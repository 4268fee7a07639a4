"""``r1flow plan``: for every stage, reused or to build and why; nothing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.artifacts import ArtifactStore
from components.runtime import StageArtifact
from flows.explain import one_line
from flows.source import digest_of, source_files
from flows.stage import StageSpec, despite_code, explain, own_changes, same_but_for_code, stage_key, targets


@dataclass(frozen=True)
class PlannedStage:
    """Attributes: key: None where it depends on a stage still to be built; why: the first reason to build it."""

    name: str
    inputs: Sequence[str]
    state: str
    why: str
    key: str | None


def make_plan(specs: Sequence[StageSpec], store: ArtifactStore, *, ignore_code: bool = False) -> list[PlannedStage]:
    """What a run of these stages would do, in its order.

    Args:
        ignore_code: as for `flows.stage.run_stage`.
    """
    known: dict[str, StageArtifact] = {}
    plan = []
    for spec in specs:
        sources = list(dict.fromkeys(spec.inputs.values()))
        parents = {name: known[source] for name, source in spec.inputs.items() if source in known}
        pending = [source for source in sources if source not in known]
        if pending:
            more = f" and {len(pending) - 3} more" if len(pending) > 3 else ""
            own = own_changes(spec, parents, store) or []
            why = "; ".join([*([one_line(own)] if own else []), f"after {', '.join(pending[:3])}{more}"])
            plan.append(PlannedStage(spec.name, sources, "to build", why, None))
            continue
        found, key, why = _look_up(spec, parents, store, ignore_code)
        if found is None:
            why = explain(spec, parents, store)
        else:
            known[spec.name] = found
        plan.append(PlannedStage(spec.name, sources, "to build" if found is None else "reused", why, key))
    return plan


def _look_up(
    spec: StageSpec, parents: Mapping[str, StageArtifact], store: ArtifactStore, ignore_code: bool
) -> tuple[StageArtifact | None, str, str]:
    """The artifact if there is one, its key, and what has to be said of it."""
    source = source_files(targets(spec))
    key = stage_key(spec, parents, digest_of(source))
    if (found := store.find(spec.name, key)) is not None:
        return found, key, ""
    if ignore_code and (other := same_but_for_code(spec, parents, source, store)) is not None:
        return other[0], other[0].key, despite_code(other[1])
    return None, key, ""


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
