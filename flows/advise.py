"""``r1flow plan --advise``: whether RL is what the model needs, from what earlier stages left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.artifacts import ArtifactStore
from flows.build import build
from flows.history import alike
from flows.stage import StageSpec
from flows.wiring import kinds_given

if TYPE_CHECKING:
    from components.evaluation.advice import Advice, Evidence

_MARKS = {"good": ("✓", "green"), "warn": ("!", "yellow"), "no": ("✗", "red"), "unknown": ("?", "dim")}
_RL, _SFT = "components.stages.rl.rl", "components.stages.sft.sft"


def advise_run(specs: Sequence[StageSpec], store: ArtifactStore, allow: Sequence[str]) -> list[Advice]:
    """The guide's answers for every RL stage of a pipeline, from its own artifacts or, where there are none, from the
    most alike of earlier runs. Reads and computes, trains nothing."""
    from components.evaluation.advice import advise  # numpy

    return [advise(gather(spec, specs, store, allow)) for spec in specs if spec.target == _RL]


def gather(spec: StageSpec, specs: Sequence[StageSpec], store: ArtifactStore, allow: Sequence[str]) -> Evidence:
    """What is known before an RL stage."""
    from components.evaluation.advice import Evidence
    from components.evaluation.page.sources import read_parquet

    by_name = {other.name: other for other in specs}
    start = by_name[spec.inputs["model"]]

    def newest(stage: str | None) -> Path | None:
        rows = alike(by_name[stage], store) if stage in by_name else []
        return rows[0]["path"] if rows else None

    rows = profile = None
    for other in specs:
        if other.inputs.get("model") == start.name and "evaluation" in (kinds_given(other.target) or ()):
            path = newest(other.name)
            rows = read_parquet(path / "answers.parquet") if path is not None and rows is None else rows
    profiles = [
        name
        for name in spec.inputs.values()
        if name in by_name and "profile" in (kinds_given(by_name[name].target) or ())
    ]
    if (
        profiles
        and by_name[profiles[0]].inputs.get("model") == start.name
        and (path := newest(profiles[0])) is not None
    ):
        profile = json.loads((path / "profile.json").read_text(encoding="utf-8"))
    tasks = _tasks(newest(spec.inputs.get("data")))
    return Evidence(
        stage=spec.name,
        start=start.name,
        rows=rows,
        profile=profile,
        tasks=None if tasks is None else len(tasks),
        supervised=any(other.target == _SFT for other in _line(start, by_name)),
        verifier=_verifier(spec, tasks, allow),
        group_size=int(spec.settings.get("group_size") or 8),
        seconds=_seconds(spec, start, store),
    )


def _line(spec: StageSpec, by_name: Mapping[str, StageSpec]) -> Iterator[StageSpec]:
    """A stage and those whose model it goes back to."""
    yield spec
    if (before := by_name.get(spec.inputs.get("model", ""))) is not None:
        yield from _line(before, by_name)


def _tasks(data: Path | None) -> list[Any] | None:
    """Reasoning tasks to train on."""
    from components.artifacts import read_jsonl
    from components.types import Task

    file = None if data is None else data / "tasks" / "train.jsonl"
    if file is None or not file.is_file():
        return None
    return [task for row in read_jsonl(file) if (task := Task.from_json(row)).kind == "reasoning"]


def _verifier(spec: StageSpec, tasks: Sequence[Any] | None, allow: Sequence[str]) -> Mapping[str, Any] | None:
    from components.rewards.trial import agreement

    name = (spec.settings.get("curriculum") or {}).get("accuracy", "accuracy")
    node = next(_terms(spec.settings.get("reward"), name), None)
    if node is None or not tasks:
        return None
    return agreement(build(node, allow=allow), tasks, seed=spec.seed)


def _terms(node: Any, name: str) -> Iterator[Any]:
    """Nodes of the reward term of that name, however deep in mixes."""
    if isinstance(node, Mapping):
        terms = node.get("terms")
        if isinstance(terms, Mapping) and name in terms:
            yield terms[name]
        for value in node.values():
            yield from _terms(value, name)


def _seconds(spec: StageSpec, start: StageSpec, store: ArtifactStore) -> tuple[float, float, str] | None:
    """What the RL stage and the SFT before it took when they were last built."""
    rl, sft = alike(spec, store), alike(start, store) if start.target == _SFT else []
    if not rl or not sft or not all("wall_s" in rows[0] for rows in (rl, sft)):
        return None
    return float(rl[0]["wall_s"]), float(sft[0]["wall_s"]), "as last built"


def print_advice(found: Sequence[Advice], console: Any) -> None:
    """The conclusion first, then the answers it comes from."""
    if not found:
        console.print("no RL stage in this pipeline: nothing to advise on", markup=False)
    for advice in found:
        colour = {"rl": "green", "not rl": "red"}.get(advice.verdict, "yellow")
        console.print(f"{advice.stage}: {advice.conclusion}", markup=False, style=f"bold {colour}", soft_wrap=True)
        for check in advice.checks:
            mark, style = _MARKS[check.state]
            console.print(f"  {mark} ", style=style, end="", markup=False)
            console.print(f"{check.name:<9} {check.text}", markup=False, soft_wrap=True, end="")
            console.print(f". Fix: {check.remedy}" if check.remedy else "", markup=False, soft_wrap=True)
