"""What a component reads from outside enters the stage's key: a changed data file is a changed stage.

A component says so by a method ``fingerprint() -> str``; if it also has ``check()``, that runs first and its ValueError
is told like any other bad input, before anything is built.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flows.annotations import CONTENT
from flows.build import build
from flows.errors import BadInput, Problem
from flows.modules import Definition, look_up
from flows.signature import split_target
from flows.stage import StageSpec


def with_content(specs: Sequence[StageSpec], allow: Sequence[str]) -> list[StageSpec]:
    """The stages with the fingerprint of what they read from outside in their settings.

    Raises: BadInput with what a component finds wrong with its data.
    """
    known: dict[str, str | Problem] = {}
    marked = [replace(spec, settings=_marked(spec.settings, spec.name, allow, known)) for spec in specs]
    if problems := [found for found in known.values() if isinstance(found, Problem)]:
        raise BadInput(problems)
    return marked


def _marked(value: Any, where: str, allow: Sequence[str], known: dict[str, str | Problem]) -> Any:
    if isinstance(value, list | tuple):
        return [_marked(item, f"{where}.{i}", allow, known) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if isinstance(target := value.get("_target_"), str) and _has_fingerprint(target):
        found = known.setdefault(repr(value), _fingerprint(value, where, allow))
        return {**value, CONTENT: found}
    return {key: _marked(item, f"{where}.{key}", allow, known) for key, item in value.items()}


def _has_fingerprint(target: str) -> bool:
    """Whether the target is a class with that method; read from its source, nothing is imported."""
    found = look_up(*split_target(target), 0)
    body = found.node.body if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef) else []
    return any(isinstance(item, ast.FunctionDef) and item.name == "fingerprint" for item in body)


def _fingerprint(node: Mapping[str, Any], where: str, allow: Sequence[str]) -> str | Problem:
    stage, _, key = where.partition(".")
    try:
        component = build(node, allow=allow)
        if hasattr(component, "check"):
            component.check()
        return component.fingerprint()
    except (ValueError, OSError) as error:
        return Problem(f"stage {stage}", key, str(error))
