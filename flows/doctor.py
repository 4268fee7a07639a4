"""``r1flow doctor``: what went wrong in a run, from what its stages left."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.artifacts import ArtifactStore
from flows.errors import BadInput, Problem
from flows.runs import find_run

if TYPE_CHECKING:
    from components.evaluation.doctor.finding import Finding
    from components.evaluation.doctor.read import StageFiles

SHOWN = 2  # samples of a finding that are printed; --json has all
_WIDTH = 110


def diagnose(artifacts: Path, run: str | None, console: Any, *, as_json: bool = False) -> int:
    """Print the findings of a run, with evidence and remedy; the exit code: 0 if there are none, 1 if any.

    Raises: BadInput if there is no such run, or none of its stages left anything.
    """
    from components.evaluation.doctor.read import examine_run

    record = find_run(artifacts, run)
    stages = stage_files(artifacts, record)
    if not stages:
        fix = "wait for a stage to take its first steps, or start it again: r1flow run"
        raise BadInput(
            Problem("doctor", "", "no stage of this run left anything to examine", got=record["id"], fix=fix)
        )
    findings = examine_run(stages)
    if as_json:
        told = {"run": record["id"], "stages": _examined(stages), "findings": [f.to_json() for f in findings]}
        json.dump(told, sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        _print(record, stages, findings, console)
    return 1 if findings else 0


def stage_files(artifacts: Path, record: Mapping[str, Any]) -> list[StageFiles]:
    """Directories of a run's stages, in their order: finished artifacts, and of a stage that has not finished what it
    has written so far."""
    from components.evaluation.doctor.read import StageFiles

    drafts = sorted(ArtifactStore(artifacts / "cache").drafts(), key=lambda draft: Path(draft["path"]).stat().st_mtime)
    newest = {draft["stage"]: Path(draft["path"]) for draft in drafts}
    found = []
    for name, stage in record["stages"].items():
        path = Path(stage["path"]) if stage.get("path") else None
        if path is None and stage["state"] not in ("waiting", "skipped"):
            path = newest.get(name)
        if path is not None and path.is_dir():
            failure = f"{stage.get('why', '')}\n{stage.get('details', '')}" if stage["state"] == "failed" else ""
            found.append(StageFiles(name, path, dict(stage.get("inputs", {})), stage.get("settings", {}), failure))
    return found


def _examined(stages: Sequence[StageFiles]) -> dict[str, int]:
    """Steps that each stage logged, for those that log any; evaluations count as 0."""
    from components.evaluation.doctor.read import read_metrics

    steps = {files.stage: rows[-1]["step"] for files in stages if (rows := read_metrics(files.path))}
    return {
        files.stage: steps.get(files.stage, 0) for files in stages if files.stage in steps or files.answers.is_file()
    }


def _print(record: Mapping[str, Any], stages: Sequence[StageFiles], findings: Sequence[Finding], console: Any) -> None:
    examined = _examined(stages)
    trained = ", ".join(f"{stage} ({steps:,} steps)" for stage, steps in examined.items() if steps)
    evaluations = sum(not steps for steps in examined.values())
    console.print(f"run {record['id']} · {record['pipeline']} · {record['state']}", markup=False, style="bold")
    console.print(
        f"examined {trained or 'no training'}" + (f"; {evaluations} evaluations" if evaluations else ""), markup=False
    )
    for finding in findings:
        console.print()
        colour = "red" if finding.severity == "error" else "yellow"
        console.print(f"! {finding.where}: {finding.title}", markup=False, style=f"bold {colour}")
        _block(console, "evidence", finding.evidence)
        for sample in finding.samples[:SHOWN]:
            right = "" if sample.truth is None else f", accuracy {sample.truth:g}"
            head = f"step {sample.step}, " if sample.step else ""
            _block(console, "sample", f"{head}{sample.task_id}, reward {sample.reward:.2f}{right}: {sample.prompt}")
            _block(console, "", sample.response)
        _block(console, "remedy", finding.remedy)
    console.print()
    several = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    console.print(several if findings else "✓ no findings", style="" if findings else "green")


def _block(console: Any, label: str, text: str) -> None:
    lines = textwrap.wrap(" ".join(text.split()), _WIDTH) or [""]
    for i, line in enumerate(lines):
        console.print(f"  {label if i == 0 else '':<9} {line}", markup=False, highlight=False, soft_wrap=True)
