"""The settings a component accepts, read from its source without importing it.

Importing a stage's module would import torch (seconds); a run whose stages are all reused must not pay for that.
So the signature of a ``_target_`` is read from the syntax tree: parameters, which are required, and their types as
far as they are plain ones (numbers, strings, containers, Literal, Optional). A class stands for "a component": a
mapping with ``_target_``. What can't be read this way (a target made at run time) is imported and inspected.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from flows.annotations import plain_type
from flows.errors import did_you_mean
from flows.modules import DEFINITIONS, Definition, find_source, last_name, look_up, near_module, top_names


@dataclass(frozen=True)
class Parameter:
    name: str
    type: Any
    text: str
    required: bool
    default: Any = None


@dataclass(frozen=True)
class Signature:
    """Attributes: parameters: by name, in order, without ``self``; open: accepts any further keyword (``**kwargs``)."""

    target: str
    parameters: Mapping[str, Parameter]
    open: bool

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults that are written as plain values."""
        return {name: p.default for name, p in self.parameters.items() if p.default is not None}


class NoSuchTarget(Exception):
    """A dotted path that leads to no function or class; ``fix`` says what is near."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


@cache
def read_signature(target: str) -> Signature:
    """Signature of the function or class at ``target``. Raises NoSuchTarget."""
    module, name = split_target(target)
    found = look_up(module, name, depth=0)
    if isinstance(found, Definition):
        if (signature := _static(target, found)) is not None:
            return signature
    elif found is None:
        names = [n for n, s in top_names(module).items() if isinstance(s, DEFINITIONS) and not n.startswith("_")]
        raise NoSuchTarget(f"module {module} has no {name!r}", did_you_mean(name, names, prefix=f"{module}."))
    return _imported(target, module, name)


def split_target(target: str) -> tuple[str, str]:
    """Module and name of a dotted path; only the module's file is looked for, nothing is imported."""
    module, _, name = target.rpartition(".")
    if not module or not all(part.isidentifier() for part in target.split(".")):
        raise NoSuchTarget(f"{target!r} is not a dotted path", "write package.module.function")
    if find_source(module) is None:
        raise NoSuchTarget(f"no module {module}", near_module(module))
    return module, name


def _static(target: str, found: Definition) -> Signature | None:
    node = found.node
    if not isinstance(node, ast.ClassDef):
        return _of_arguments(target, found.module, node.args, skip_first=False)
    if any(last_name(d) == "dataclass" for d in node.decorator_list):
        return _of_dataclass(target, found) if all(last_name(b) in ("Protocol", "ABC") for b in node.bases) else None
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return _of_arguments(target, found.module, statement.args, skip_first=True)
    return Signature(target, {}, open=False) if not node.bases else None


def _of_arguments(target: str, module: str, args: ast.arguments, skip_first: bool) -> Signature:
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    pairs = list(zip(positional, [*defaults, *args.defaults], strict=True))[1 if skip_first else 0 :]
    pairs += list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
    parameters = {a.arg: _parameter(module, a.arg, a.annotation, d is None, d) for a, d in pairs}
    return Signature(target, parameters, open=args.kwarg is not None)


def _of_dataclass(target: str, found: Definition) -> Signature:
    parameters: dict[str, Parameter] = {}
    for s in found.node.body:
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name):
            text = ast.unparse(s.annotation)
            if "ClassVar" in text or _is_field_without_init(s.value):
                continue
            name, required = s.target.id, _field_is_required(s.value)
            parameters[name] = _parameter(found.module, name, s.annotation, required, s.value)
    return Signature(target, parameters, open=False)


def _field_keywords(value: ast.expr | None) -> dict[str, ast.expr] | None:
    if isinstance(value, ast.Call) and last_name(value.func) == "field":
        return {k.arg: k.value for k in value.keywords if k.arg}
    return None


def _field_is_required(value: ast.expr | None) -> bool:
    keywords = _field_keywords(value)
    return value is None if keywords is None else not {"default", "default_factory"} & set(keywords)


def _is_field_without_init(value: ast.expr | None) -> bool:
    init = (_field_keywords(value) or {}).get("init")
    return isinstance(init, ast.Constant) and init.value is False


def _parameter(
    module: str, name: str, annotation: ast.expr | None, required: bool, default: ast.expr | None
) -> Parameter:
    try:
        value = None if default is None else ast.literal_eval(default)
    except ValueError:
        value = None
    if annotation is None:
        return Parameter(name, Any, "anything", required, value)
    return Parameter(name, plain_type(module, annotation), ast.unparse(annotation), required, value)


# --- the slow way --------------------------------------------------------------------------------------------------


def _imported(target: str, module: str, name: str) -> Signature:
    try:
        thing = getattr(importlib.import_module(module), name)
        signature = inspect.signature(thing)
    except AttributeError as error:
        raise NoSuchTarget(f"module {module} has no {name!r}", "check the spelling") from error
    except (ImportError, TypeError, ValueError) as error:
        raise NoSuchTarget(
            f"{target} can't be used: {error}", "install what it imports, or name another target"
        ) from error
    kinds = inspect.Parameter
    parameters = {
        p.name: Parameter(p.name, Any, "anything", p.default is kinds.empty)
        for p in signature.parameters.values()
        if p.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    }
    return Signature(target, parameters, any(p.kind is kinds.VAR_KEYWORD for p in signature.parameters.values()))
