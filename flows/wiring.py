"""Whether each stage's inputs are of the kind it takes, read from the stages' sources.

A stage's module says what it takes and gives: ``TAKES = {"model": "model", "profile": "profile?"}`` (input name → kind,
with a question mark where it does without) and ``GIVES = ("model",)``. Stages that don't say are not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from flows.errors import Problem
from flows.modules import find_source, literal
from flows.stage import StageSpec


def wiring_problems(specs: Sequence[StageSpec]) -> Iterator[Problem]:
    """Inputs that are missing, or come from a stage that gives something else."""
    gives = {spec.name: kinds_given(spec.target) for spec in specs}
    for spec in specs:
        for name, kind in kinds_taken(spec.target).items():
            wanted, source = kind.rstrip("?"), spec.inputs.get(name)
            if source is None and kind.endswith("?"):
                continue
            if source is None:
                problem, got = f"is missing: this stage needs {_article(wanted)}", "null"
            elif gives.get(source) is None or wanted in (gives[source] or ()):
                continue
            else:
                given = " and ".join(map(_article, gives[source] or ())) or "nothing"
                problem, got = f"{source} gives {given}, not {_article(wanted)}", source
            fitting = [name for name in _before(spec.name, specs) if wanted in (gives[name] or ())]
            fix = f"name one of {', '.join(fitting)}" if fitting else f"add a stage that gives {_article(wanted)}"
            yield Problem(f"stage {spec.name}", f"inputs.{name}", problem, got=got, fix=fix)


def kinds_taken(target: str) -> Mapping[str, str]:
    """Input name → kind, as a stage's module has it."""
    found = _constant(target, "TAKES")
    return found if isinstance(found, Mapping) else {}


def kinds_given(target: str) -> Collection[str] | None:
    """Kinds of what a stage writes; None if its module doesn't say."""
    found = _constant(target, "GIVES")
    return found if isinstance(found, tuple | list) else None


def _constant(target: str, name: str) -> object:
    module = target.rpartition(".")[0]
    return literal(module, name) if module and find_source(module) is not None else None


def _before(stage: str, specs: Sequence[StageSpec]) -> list[str]:
    """Stages that come before this one and so can't depend on it."""
    names = [spec.name for spec in specs]
    return names[: names.index(stage)]


def _article(kind: str) -> str:
    if kind in ("data", "preferences", "examples"):
        return kind
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind.replace('_', ' ')}"
