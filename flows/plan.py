"""``r1flow plan``: for every stage, reused or to build and why, and what it will take; nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore
from components.runtime import StageArtifact
from flows.estimate import Estimate, room, total_s, warnings
from flows.explain import one_line
from flows.source import digest_of, source_files
from flows.stage import StageSpec, despite_code, explain, own_changes, same_but_for_code, stage_key, targets
from flows.status import size_text


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


def plan_table(pipeline: str, plan: Sequence[PlannedStage], estimates: Mapping[str, Estimate] | None = None) -> Any:
    """The plan for a person, with what each stage will take where that is known."""
    from rich.table import Table
    from rich.text import Text

    building = sum(stage.state != "reused" for stage in plan)
    title = f"pipeline {pipeline}: {len(plan)} stages, {building} to build, {len(plan) - building} reused"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    costs = ("time", "disk", "memory", "from") if estimates else ()
    for column in ("stage", "state", "key", *costs, "inputs", "why"):
        right = column in costs[:3]
        narrow = column in (*costs, "stage", "state", "key")
        table.add_column(column, no_wrap=narrow, overflow="fold", justify="right" if right else "left")
    for stage in plan:
        style = "cyan" if stage.state == "reused" else "yellow"
        inputs = ", ".join(stage.inputs) or "–"
        cost = _cost((estimates or {}).get(stage.name)) if estimates else ()
        state = Text(stage.state, style=style)
        table.add_row(stage.name, state, (stage.key or "")[:10], *cost, inputs, Text(stage.why))
    return table


def _cost(found: Estimate | None) -> tuple[str, str, str, str]:
    if found is None:
        return "", "", "", ""
    time = f"{_short_time(found.s)} ({_short_time(found.low_s)}–{_short_time(found.high_s)})"
    return time, size_text(found.disk), size_text(found.memory) if found.memory else "", found.source


def _short_time(seconds: float) -> str:
    """``9 s``, ``1:08``, ``2:05 h``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"
    return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f} h"


def costs_of(
    specs: Sequence[StageSpec],
    plan: Sequence[PlannedStage],
    estimates: Mapping[str, Estimate],
    artifacts: Path,
    capacity: int,
) -> tuple[list[str], list[str]]:
    """(lines on the whole run: time, disk, memory; warnings of what will not fit)."""
    building = {stage.name for stage in plan if stage.state != "reused"}
    missing = [stage.name for stage in plan if stage.name in building and stage.name not in estimates]
    lines = []
    if estimates:

        def total(of: Callable[[Estimate], float]) -> str:
            seconds = {name: of(found) for name, found in estimates.items()}
            return _short_time(total_s(specs, seconds, lambda spec: slots_of(spec, capacity), capacity))

        disk, memory = room(artifacts)
        needed = sum(found.disk for found in estimates.values())
        peak = max(found.memory for found in estimates.values())
        most = "" if memory is None else f" ({size_text(memory)} available)"
        lines.append(
            f"about {total(lambda e: e.s)} in all ({total(lambda e: e.low_s)} on an idle machine to "
            f"{total(lambda e: e.high_s)} on a loaded one); disk {size_text(needed)} ({size_text(disk)} free); memory "
            f"at most {size_text(peak)}{most}"
        )
    if missing:
        which = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        lines.append(
            f"no figures for {which}: not built here before. r1flow plan --measure tries the model for seconds"
        )
    if not estimates:
        return lines, []
    return lines, list(warnings(estimates, disk, memory))


def slots_of(spec: StageSpec, capacity: int) -> int:
    """Cores that a stage holds while it is built."""
    wanted = int(spec.launcher.get("processes") or 1) * int(spec.launcher.get("threads") or 1)
    return min(wanted, capacity)
