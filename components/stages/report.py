"""Stage: the report – one self-contained page and one summary of what every stage did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from components.evaluation.attribution import Evaluated, attribute
from components.evaluation.doctor.read import StageFiles, by_step, examine_run, read_machine
from components.evaluation.gate import judge
from components.evaluation.lineage import incumbent
from components.evaluation.page.explorer import explorer
from components.evaluation.page.lift_view import lift_notes
from components.evaluation.page.notes import make_notes
from components.evaluation.page.samples import side_by_side
from components.evaluation.page.sources import Sources, read_sources
from components.evaluation.page.view import render
from components.evaluation.summary import compare, summarise
from components.runtime import Inputs, Out

GIVES = ("report",)


def report(
    inputs: Inputs,
    out: Out,
    *,
    title: str = "What the pipeline did",
    prefix: str = "eval_",
    comparisons: int = 12,
    explorer_samples: int = 480,
) -> dict[str, float]:
    """Write ``report.html`` and ``summary.json``.

    Every input is used for what lies in it (answers, rollouts, a profile, counts), and through the manifests every
    stage it was built from. Evaluations are compared in the order of ``inputs``, each with the one before.

    Args:
        prefix: what names of evaluation stages have before the name of the evaluated stage.
        comparisons: prompts shown side by side.
        explorer_samples: answers and rollouts in the page's explorer, spread over stages.

    Returns:
        ``<stage>/<metric>`` for the figures of every evaluated stage.
    """
    if not out.peers.is_main:
        return {}
    sources = read_sources(inputs, prefix)
    stages = evaluated_stages(sources, out.seed)
    owned, gate = attribution(sources, out.seed), verdicts(sources, out.seed)
    notes = make_notes(stages, sources, lift_notes(owned, stages))
    findings = examine_run(
        [StageFiles(stage, node.path, node.parents) for stage, node in sources.nodes.items()],
        {stage: by_step(rows) for stage, rows in sources.rollouts.items()},
    )
    page = render(
        sources,
        stages,
        notes,
        side_by_side(sources.evaluations, sources, comparisons, out.seed),
        explorer(sources, explorer_samples, out.seed),
        findings,
        attribution=owned,
        verdicts=gate,
        title=title,
        seed=out.seed,
    )
    out.path.mkdir(parents=True, exist_ok=True)
    (out.path / "report.html").write_text(page, encoding="utf-8")
    summary = {
        "stages": stages,
        "notes": [note.to_json() for note in notes],
        "findings": [finding.to_json() for finding in findings],
        "attribution": owned,
        "gate": gate,
        "wall_s": {stage: node.wall_s for stage, node in sources.nodes.items() if node.wall_s is not None},
    }
    (out.path / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {f"{stage['name']}/{name}": entry["value"] for stage in stages for name, entry in stage["metrics"].items()}


def evaluated_stages(sources: Sources, seed: int) -> list[dict[str, Any]]:
    """For every evaluation: its figures, and what changed against the one before (None for the first)."""
    stages: list[dict[str, Any]] = []
    before = None
    for evaluation in sources.evaluations:
        changes = None
        if before is not None:
            address = (seed, "report", before.stage, evaluation.stage)
            changes = compare(before.rows, evaluation.rows, address=address)
        stages.append(
            {
                "name": evaluation.stage,
                "evaluation": evaluation.name,
                "rl": evaluation.rl,
                "against": None if before is None else before.stage,
                "changes": changes,
                **summarise(evaluation.rows),
            }
        )
        before = evaluation
    return stages


def attribution(sources: Sources, seed: int) -> dict[str, Any]:
    """What the lift of every stage consists of, and who owns how much of it (see `attribute`).

    Of a treatment and its control also ``cpu_s``, seconds of CPU that each took where its workers said so.
    """
    before = _incumbents(sources)
    found = [Evaluated(e.stage, before[e.stage], e.rows) for e in sources.evaluations]
    result = attribute(found, address=(seed, "report"))
    for entry in result["controls"]:
        workers = {s: read_machine(sources.nodes[s].path).get("workers") for s in (entry["stage"], entry["control"])}
        entry["cpu_s"] = {stage: sum(w["cpu_s"] for w in used) if used else None for stage, used in workers.items()}
    return result


def verdicts(sources: Sources, seed: int) -> list[dict[str, Any]]:
    """What the promotion gate says of every model that comes after an evaluated one."""
    rows = {evaluation.stage: evaluation.rows for evaluation in sources.evaluations}
    return [
        judge(rows[before], rows[stage], stage=stage, against=before, address=(seed, stage, before)).to_json()
        for stage, before in _incumbents(sources).items()
        if before is not None
    ]


def _incumbents(sources: Sources) -> dict[str, str | None]:
    """Evaluated stage → the evaluated stage that it comes after."""
    parents = {stage: node.parents for stage, node in sources.nodes.items()}
    names = {evaluation.stage for evaluation in sources.evaluations}
    return {evaluation.stage: incumbent(evaluation.stage, parents, names) for evaluation in sources.evaluations}


def report_measures(settings: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The figures of every evaluation among the inputs, under the name of the stage whose model it is about."""
    found = []
    for name, given in inputs.items():
        if "pass@1" in given["measures"]:
            stage = given["inputs"].get("model") or name.removeprefix(settings["prefix"])
            found += [f"{stage}/{figure}" for figure in given["measures"]]
    return found
