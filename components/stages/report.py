"""Stage: the report – one self-contained page and one summary of what every stage did."""

from __future__ import annotations

import json
from typing import Any

from components.evaluation.attribution import Evaluated, attribute
from components.evaluation.doctor.read import StageFiles, by_step, examine_run, read_machine
from components.evaluation.lineage import incumbent
from components.evaluation.page.notes import make_notes
from components.evaluation.page.samples import explorer, side_by_side
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
    notes = make_notes(stages, sources)
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
        title=title,
        seed=out.seed,
    )
    out.path.mkdir(parents=True, exist_ok=True)
    (out.path / "report.html").write_text(page, encoding="utf-8")
    summary = {
        "stages": stages,
        "notes": [note.to_json() for note in notes],
        "findings": [finding.to_json() for finding in findings],
        "attribution": attribution(sources, out.seed),
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
    parents = {stage: node.parents for stage, node in sources.nodes.items()}
    names = {evaluation.stage for evaluation in sources.evaluations}
    found = [Evaluated(e.stage, incumbent(e.stage, parents, names), e.rows) for e in sources.evaluations]
    result = attribute(found, address=(seed, "report"))
    for entry in result["controls"]:
        workers = {s: read_machine(sources.nodes[s].path).get("workers") for s in (entry["stage"], entry["control"])}
        entry["cpu_s"] = {stage: sum(w["cpu_s"] for w in used) if used else None for stage, used in workers.items()}
    return result
