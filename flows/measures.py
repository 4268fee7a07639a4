"""Which figures a run will have, before it runs: what its stages say they measure, against what its objective names.

A stage says so by a function ``<name>_measures`` next to it, of its settings and, if it takes them, of its inputs
(input name → ``measures`` and ``inputs`` of the stage that it comes from). It returns names; ``reward/*`` stands for
all that match, and ``*`` says that there may be any others. A stage without such a function doesn't say.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from flows.checks import own_function, with_defaults
from flows.errors import SHOWN, Problem
from flows.objective import DEFAULT, Objective, read_objective
from flows.signature import read_signature
from flows.stage import StageSpec

ANY = "*"


def measures(specs: Sequence[StageSpec]) -> dict[str, list[str]]:
    """Stage → names of its figures, as far as it says; `ANY` among them if there may be others."""
    found: dict[str, list[str]] = {}
    by_name = {spec.name: spec for spec in specs}

    def of(spec: StageSpec) -> list[str]:
        if spec.name not in found:
            function = own_function(spec.target, "measures")
            settings = with_defaults({**read_signature(spec.target).defaults, **spec.settings})
            given: list[Any] = [settings]
            if function is not None and len(inspect.signature(function).parameters) > 1:
                parents = {name: by_name[stage] for name, stage in spec.inputs.items() if stage in by_name}
                given.append(
                    {n: {"measures": of(parent), "inputs": dict(parent.inputs)} for n, parent in parents.items()}
                )
            found[spec.name] = [ANY] if function is None else list(function(*given))
        return found[spec.name]

    for spec in specs:
        of(spec)
    return found


def objective_problems(
    root: Mapping[str, Any], overrides: Sequence[str], specs: Sequence[StageSpec], *, needed: bool = False
) -> Iterator[Problem]:
    """Metrics of the objective that no stage measures; a warning where some stage doesn't say what it measures.

    Args:
        needed: also the objective that a run has where nobody asked for one.
    """
    if not needed and not is_asked_for(root, overrides):
        return
    objective, given = read_objective(root.get("objective")), _on_command_line(overrides)
    known = measures(specs)
    silent = [stage for stage, names in known.items() if ANY in names]
    for metric in objective.weights:
        if not is_measured(metric, known):
            yield _problem(metric, objective, known, silent, given)


def is_asked_for(root: Mapping[str, Any], overrides: Sequence[str]) -> bool:
    """Whether somebody set the objective, so that a run without a value is not what was wanted."""
    return _on_command_line(overrides) or read_objective(root.get("objective")).weights != DEFAULT


def _on_command_line(overrides: Sequence[str]) -> bool:
    return any(text.lstrip("+~").partition("=")[0].split(".")[0] == "objective" for text in overrides)


def is_measured(metric: str, known: Mapping[str, Sequence[str]]) -> bool:
    """Whether a stage says that it has a figure of that name: ``pass@1`` any stage, ``rl_1/reward`` that stage."""
    patterns = [
        name for stage, names in known.items() for own in names if own != ANY for name in (own, f"{stage}/{own}")
    ]
    return any(fnmatchcase(metric, pattern) for pattern in patterns)


def _problem(
    metric: str, objective: Objective, known: Mapping[str, Sequence[str]], silent: Sequence[str], given: bool
) -> Problem:
    where = "command line" if given else "configuration"
    key = "objective.metric" if len(objective.weights) == 1 else f"objective.metric.{metric}"
    stage, slash, _ = metric.partition("/")
    of_stage = bool(slash) and stage in known
    fix = _remedy(metric, known, f"{stage}/" if of_stage else "")
    if silent:
        text = f"is measured by no stage that says what it measures; {', '.join(silent)} may, and the run will show"
        return Problem(where, key, text, got=metric, fix=fix, warning=True)
    what = f"nothing of that name is measured of stage {stage}" if of_stage else "no stage of this pipeline measures it"
    return Problem(where, key, what, got=metric, fix=fix)


def _remedy(metric: str, known: Mapping[str, Sequence[str]], prefix: str) -> str:
    """The nearest names, and those of the evaluations, which most objectives are made of."""
    plain = {stage: [name for name in names if ANY not in name] for stage, names in known.items()}
    evaluated = dict.fromkeys(name for names in plain.values() if "pass@1" in names for name in names)
    own = [name for names in plain.values() for name in names]
    full = [f"{stage}/{name}" for stage, names in plain.items() for name in names]
    names = dict.fromkeys([*(name for name in (*own, *full) if name.startswith(prefix))] if prefix else own)
    near = get_close_matches(metric, names, n=3, cutoff=0.55)
    usual = [f"{prefix}{name}" for name in evaluated if f"{prefix}{name}" in names]
    listed = ", ".join(usual or list(names)[:SHOWN]) or "nothing"
    question = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{question}{'Evaluations measure' if usual else 'There are'} {listed}"
