"""Modules as syntax trees: found and read without being imported."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flows.errors import did_you_mean


@cache
def find_source(module: str) -> Path | None:
    """File of a module, found without importing its parent packages."""
    top, *rest = module.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top)
    if spec is None:
        return _source_by_finders(module)
    found = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for part in rest:  # by hand: below a folder without __init__.py, importlib wants to have imported that folder
        package = next((file for f in folders if (file := f / part / "__init__.py").is_file()), None)
        found = package or next((file for f in folders if (file := f / f"{part}.py").is_file()), None)
        inside = [f / part for f in folders if (f / part).is_dir()]
        folders = [package.parent] if package else [] if found else inside
        if found is None and not folders:
            return _source_by_finders(module)
    return found


def _source_by_finders(module: str) -> Path | None:
    """Editable installs put packages behind their own finders, which only the import system asks."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def near_module(module: str) -> str:
    parent, _, last = module.rpartition(".")
    source = find_source(parent) if parent else None
    if source is None or source.name != "__init__.py":
        return "check the spelling, and that the package is importable from the working directory"
    names = {p.stem for p in source.parent.glob("*.py")} | {p.parent.name for p in source.parent.glob("*/__init__.py")}
    return did_you_mean(last, names - {"__init__"}, prefix=f"{parent}.")


@dataclass(frozen=True)
class Definition:
    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


DYNAMIC = object()
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def module_tree(module: str) -> ast.Module | None:
    source = find_source(module)
    return None if source is None else ast.parse(source.read_bytes(), filename=str(source))


@cache
def top_names(module: str) -> dict[str, ast.AST]:
    """Top-level names of a module and the statement (or import alias) that binds each; later ones win."""
    tree, names = module_tree(module), {}
    for statement in _flat(tree.body if tree else []):
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names[statement.name] = statement
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = statement
            case ast.Import() | ast.ImportFrom():
                for alias in statement.names:
                    names[alias.asname or alias.name.split(".")[0]] = statement
            case _ if type(statement).__name__ == "TypeAlias":  # Python 3.12
                names[statement.name.id] = statement  # type: ignore[attr-defined]
    return names


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those under ``if``/``try`` included."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try) and (inner := getattr(statement, part, None)):
                yield from _flat(inner)


def literal(module: str, name: str) -> Any:
    """The value of a constant that is written out in a module; None if there is none."""
    try:
        value = getattr(top_names(module).get(name), "value", None)
        return None if value is None else ast.literal_eval(value)
    except (ValueError, TypeError):
        return None


def look_up(module: str, name: str, depth: int) -> Any:
    """The definition ``name`` stands for in ``module``, re-exports followed; None if absent, DYNAMIC if unreadable."""
    statement = top_names(module).get(name)
    if isinstance(statement, DEFINITIONS):
        return Definition(module, statement)
    if depth > 8:
        return DYNAMIC
    match statement:
        case None:
            return DYNAMIC if "__getattr__" in top_names(module) else None
        case ast.ImportFrom():
            origin = import_origin(module, statement)
            original = next(a.name for a in statement.names if (a.asname or a.name) == name)
            return look_up(origin, original, depth + 1) if origin and find_source(origin) else DYNAMIC
        case ast.Assign(value=ast.Name(id=other)):
            return look_up(module, other, depth + 1)
    return DYNAMIC


def import_origin(module: str, statement: ast.ImportFrom) -> str | None:
    if not statement.level:
        return statement.module
    source = find_source(module)
    package = module.split(".")
    if source is None or source.name != "__init__.py":
        package = package[:-1]
    package = package[: len(package) - statement.level + 1]
    return ".".join([*package, *([statement.module] if statement.module else [])])


def last_name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
