"""What a component reads from outside: its fingerprint enters the stage's key, its contents have to suffice.

A component says so by methods: ``fingerprint() -> str``, so that a changed data file is a changed stage; ``check()``,
whose ValueError is told like any other bad input; ``contents() -> {file: rows}``, what a stage that is given this
source can write at most. A stage's own check may take a fourth parameter, by input (or setting) name the contents that
are known, and say what is lacking: data without traces can't be learned from, however the run is set up.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flows.annotations import CONTENT
from flows.build import build
from flows.checks import supply_problems
from flows.errors import BadInput, Problem, data_problems
from flows.modules import Definition, look_up
from flows.signature import split_target
from flows.stage import StageSpec
from flows.supply import gold_problems, prompt_problems, verifier_problems
from flows.supply_tools import tool_problems

_METHODS = frozenset({"fingerprint", "contents"})
Contents = Mapping[str, int]


@dataclass(frozen=True)
class _Found:
    """What one component was found to read."""

    fingerprint: str | None = None
    contents: Contents | None = None


@dataclass(frozen=True)
class _Wrong:
    """What one component finds wrong with what it reads, and how many things beside them."""

    problems: Sequence[Problem]
    more: int


def with_content(specs: Sequence[StageSpec], allow: Sequence[str]) -> list[StageSpec]:
    """The stages with the fingerprint of what they read from outside in their settings.

    Raises: BadInput with what a component finds wrong with its data, or a stage with what it is to be given.
    """
    known: dict[str, _Found | _Wrong] = {}
    marked = [replace(spec, settings=_marked(spec.settings, spec.name, allow, known)) for spec in specs]
    if wrong := [found for found in known.values() if isinstance(found, _Wrong)]:
        raise BadInput([problem for found in wrong for problem in found.problems], sum(found.more for found in wrong))
    held = {spec.name: _contents(spec.settings, known) for spec in specs}
    lacking = []
    for spec in specs:
        given = {name: contents for name, source in spec.inputs.items() for contents in held[source].values()}
        given |= held[spec.name]
        if given:
            lacking += supply_problems(f"stage {spec.name}", spec.target, spec.settings, spec.inputs, given)
    lacking += [*verifier_problems(specs, held), *tool_problems(specs, held, allow)]
    lacking += [] if lacking else [*prompt_problems(specs, held, allow), *gold_problems(specs, allow)]
    if lacking:
        raise BadInput(lacking)
    return marked


def changed_source(spec: StageSpec, allow: Sequence[str]) -> str:
    """The setting whose data are no longer what the stage's key stands for; "" if all is as it was."""
    todo: list[tuple[str, Any]] = [(spec.name, spec.settings)]
    while todo:
        where, value = todo.pop()
        if isinstance(value, list | tuple):
            todo += [(f"{where}.{i}", item) for i, item in enumerate(value)]
        elif isinstance(value, Mapping):
            todo += [(f"{where}.{key}", item) for key, item in value.items()]
            if CONTENT in value:
                node = {key: item for key, item in value.items() if key != CONTENT}
                try:
                    if build(node, allow=allow).fingerprint() != value[CONTENT]:
                        return where
                except (ValueError, OSError):
                    return where
    return ""


def _contents(settings: Mapping[str, Any], known: Mapping[str, _Found | _Wrong]) -> dict[str, Contents]:
    """By setting of a stage: what the component it names can give."""
    found = {name: known.get(repr(value)) for name, value in settings.items()}
    return {name: f.contents for name, f in found.items() if isinstance(f, _Found) and f.contents is not None}


def _marked(value: Any, where: str, allow: Sequence[str], known: dict[str, _Found | _Wrong]) -> Any:
    if isinstance(value, list | tuple):
        return [_marked(item, f"{where}.{i}", allow, known) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if isinstance(target := value.get("_target_"), str) and _reads(target):
        if repr(value) not in known:
            known[repr(value)] = _read(value, where, allow)
        fingerprint = getattr(known[repr(value)], "fingerprint", None)
        return value if fingerprint is None else {**value, CONTENT: fingerprint}
    return {key: _marked(item, f"{where}.{key}", allow, known) for key, item in value.items()}


def _reads(target: str) -> bool:
    """Whether the target is a class with such a method; read from its source, nothing is imported."""
    found = look_up(*split_target(target), 0)
    body = found.node.body if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef) else []
    return any(isinstance(item, ast.FunctionDef) and item.name in _METHODS for item in body)


def _read(node: Mapping[str, Any], where: str, allow: Sequence[str]) -> _Found | _Wrong:
    stage, _, key = where.partition(".")
    try:
        component = build(node, allow=allow)
        if hasattr(component, "contents"):
            contents = component.contents()
        else:
            contents = None
            if hasattr(component, "check"):
                component.check()
        return _Found(component.fingerprint() if hasattr(component, "fingerprint") else None, contents)
    except (ValueError, OSError) as error:
        return _Wrong(*data_problems(error, f"stage {stage}", key))
