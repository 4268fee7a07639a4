"""From sources to the page: figures for the tables, charts, and the HTML around them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from components.evaluation.doctor.finding import Finding
from components.evaluation.page.cost import cost_of
from components.evaluation.page.curves import loss_charts, rl_charts
from components.evaluation.page.figures import columns, episodes, families, level_charts, markers, safety_plane, tested
from components.evaluation.page.lift_view import lift_section
from components.evaluation.page.notes import COUNTS, LABELS, Note
from components.evaluation.page.ran import counted, origin, pipeline, tiles, took
from components.evaluation.page.sources import Sources

_HERE = Path(__file__).parent
_HEADLINE = (
    *("pass@1", "pass@", "pass^", "maj@", "format_rate", "language_rate", "length", "steps", "invalid_calls", "longer"),
    *("unsafe_refused", "benign_answered"),
)
_SAFETY = ("unsafe_refused", "benign_answered", "safety_mean", "over_refusal")


def render(
    sources: Sources,
    stages: Sequence[Mapping[str, Any]],
    notes: Sequence[Note],
    comparisons: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]],
    findings: Sequence[Finding] = (),
    *,
    attribution: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]] = (),
    title: str,
    seed: int,
) -> str:
    """The page. Everything a model or a data set wrote is escaped by the template or set as text by the script.

    Args:
        attribution: what the lift of every stage consists of, see `components.evaluation.attribution.attribute`.
        verdicts: of the promotion gate, see `components.evaluation.gate.Verdict`.
    """
    costs = {stage: cost_of(node) for stage, node in sources.nodes.items()}
    return fill(
        "page.html.j2",
        title=title,
        seed=seed,
        origin=origin(sources.nodes),
        stages=stages,
        headline=columns(stages, _HEADLINE),
        tested=tested(stages),
        safety=columns(stages, _SAFETY),
        verdicts=verdicts,
        tiles=tiles(stages, costs),
        notes=notes,
        findings=findings,
        trained=[stage for stage in sources.nodes if stage in sources.steps],
        lift=lift_section(attribution, sources.evaluations, sources.nodes),
        pipeline=pipeline(sources.nodes, costs),
        families=families(stages),
        family_charts=level_charts(stages, "correct", share=True),
        length_charts=level_charts(stages, "length", share=False),
        markers=markers(sources.evaluations),
        episodes=episodes(stages),
        safety_plane=safety_plane(stages),
        rl=rl_charts(sources),
        losses=loss_charts(sources),
        comparisons=comparisons,
        records=records,
    )


def fill(template: str, scripts: Sequence[str] = ("page.js", "explorer.js"), **values: Any) -> str:
    """A self-contained page: style and scripts inline, the scripts allowed by their hash and nothing else."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": _percent, "points": _points, "took": took, "counted": counted, "chance": _chance}
    environment.globals["counts"] = COUNTS
    script = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in scripts)
    return environment.get_template(template).render(
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        labels=LABELS,
        **values,
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _chance(p: float) -> str:
    """ "p < .001" or "p = .023"."""
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".", 1)
