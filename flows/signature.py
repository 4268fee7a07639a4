"""The settings a component accepts, read from its source without importing it.

Importing a stage's module would import torch (seconds); a run whose stages are all reused must not pay for that.
So the signature of a ``_target_`` is read from the syntax tree: parameters, which are required, and their types as
far as they are plain ones (numbers, strings, containers, Literal, Optional). A class stands for "a component": a
mapping with ``_target_``. What can't be read this way (a target made at run time) is imported and inspected.
"""

from __future__ import annotations

import ast
import collections.abc
import importlib
import importlib.machinery
import importlib.util
import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union

from flows.errors import did_you_mean

NODE_KEYS = ("_target_", "_input_", "_env_")


class Component:
    """Type of a setting whose value is built from a node ``{_target_: …}``."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # only needed when a value is checked

        def is_node(value: Any) -> Any:
            if not (isinstance(value, Mapping) and any(key in value for key in NODE_KEYS)):
                raise ValueError("not a component")
            return value

        return core_schema.no_info_plain_validator_function(is_node)


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
    found = _lookup(module, name, depth=0)
    if isinstance(found, _Definition):
        if (signature := _static(target, found)) is not None:
            return signature
    elif found is None:
        names = [n for n, s in top_names(module).items() if isinstance(s, _DEFINITIONS) and not n.startswith("_")]
        raise NoSuchTarget(f"module {module} has no {name!r}", did_you_mean(name, names, prefix=f"{module}."))
    return _imported(target, module, name)


def split_target(target: str) -> tuple[str, str]:
    """Module and name of a dotted path; only the module's file is looked for, nothing is imported."""
    module, _, name = target.rpartition(".")
    if not module or not all(part.isidentifier() for part in target.split(".")):
        raise NoSuchTarget(f"{target!r} is not a dotted path", "write package.module.function")
    if find_source(module) is None:
        raise NoSuchTarget(f"no module {module}", _near_module(module))
    return module, name


@cache
def find_source(module: str) -> Path | None:
    """File of a module, found without importing its parent packages."""
    paths: list[str] | None = None
    spec = None
    parts = module.split(".")
    for i in range(len(parts)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: i + 1]), paths)
        if spec is None:
            return _source_by_finders(module)
        paths = list(spec.submodule_search_locations or [])
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _source_by_finders(module: str) -> Path | None:
    """Editable installs put packages behind their own finders, which only the import system asks."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _near_module(module: str) -> str:
    parent, _, last = module.rpartition(".")
    source = find_source(parent) if parent else None
    if source is None or source.name != "__init__.py":
        return "check the spelling, and that the package is importable from the working directory"
    names = {p.stem for p in source.parent.glob("*.py")} | {p.parent.name for p in source.parent.glob("*/__init__.py")}
    return did_you_mean(last, names - {"__init__"}, prefix=f"{parent}.")


# --- reading the syntax tree -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Definition:
    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


_DYNAMIC = object()
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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


def _flat(body: list[ast.stmt]) -> typing.Iterator[ast.stmt]:
    """Statements of a module, those under ``if``/``try`` included."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try) and (inner := getattr(statement, part, None)):
                yield from _flat(inner)


def _lookup(module: str, name: str, depth: int) -> Any:
    """The definition ``name`` stands for in ``module``, re-exports followed; None if absent, _DYNAMIC if unreadable."""
    statement = top_names(module).get(name)
    if isinstance(statement, _DEFINITIONS):
        return _Definition(module, statement)
    if depth > 8:
        return _DYNAMIC
    match statement:
        case None:
            return _DYNAMIC if "__getattr__" in top_names(module) else None
        case ast.ImportFrom():
            origin = _import_origin(module, statement)
            original = next(a.name for a in statement.names if (a.asname or a.name) == name)
            return _lookup(origin, original, depth + 1) if origin and find_source(origin) else _DYNAMIC
        case ast.Assign(value=ast.Name(id=other)):
            return _lookup(module, other, depth + 1)
    return _DYNAMIC


def _import_origin(module: str, statement: ast.ImportFrom) -> str | None:
    if not statement.level:
        return statement.module
    source = find_source(module)
    package = module.split(".")
    if source is None or source.name != "__init__.py":
        package = package[:-1]
    package = package[: len(package) - statement.level + 1]
    return ".".join([*package, *([statement.module] if statement.module else [])])


def _static(target: str, found: _Definition) -> Signature | None:
    node = found.node
    if not isinstance(node, ast.ClassDef):
        return _of_arguments(target, found.module, node.args, skip_first=False)
    if any(_last_name(d) == "dataclass" for d in node.decorator_list):
        return _of_dataclass(target, found) if all(_last_name(b) in ("Protocol", "ABC") for b in node.bases) else None
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


def _of_dataclass(target: str, found: _Definition) -> Signature:
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
    if isinstance(value, ast.Call) and _last_name(value.func) == "field":
        return {k.arg: k.value for k in value.keywords if k.arg}
    return None


def _field_is_required(value: ast.expr | None) -> bool:
    keywords = _field_keywords(value)
    return value is None if keywords is None else not {"default", "default_factory"} & set(keywords)


def _is_field_without_init(value: ast.expr | None) -> bool:
    init = (_field_keywords(value) or {}).get("init")
    return isinstance(init, ast.Constant) and init.value is False


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _parameter(
    module: str, name: str, annotation: ast.expr | None, required: bool, default: ast.expr | None
) -> Parameter:
    try:
        value = None if default is None else ast.literal_eval(default)
    except ValueError:
        value = None
    if annotation is None:
        return Parameter(name, Any, "anything", required, value)
    return Parameter(name, _type(module, annotation, 0), ast.unparse(annotation), required, value)


# --- annotations ---------------------------------------------------------------------------------------------------

_PLAIN: dict[str, Any] = {
    **{t.__name__: t for t in (int, float, bool, str, bytes, list, dict, tuple, set, frozenset)},
    **{n: getattr(typing, n) for n in ("Any", "Optional", "Union", "List", "Dict", "Tuple")},
    **{n: getattr(collections.abc, n) for n in ("Sequence", "Mapping", "Iterable", "Collection")},
    "MutableMapping": collections.abc.Mapping,
    "Path": Path,
    "None": None,
    "object": Any,
    "Callable": Component,
    "type": Component,
}


def _type(module: str, node: ast.expr, depth: int) -> Any:
    """The type an annotation stands for; Any where it isn't a plain one."""
    if depth > 12:
        return Any
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return _type(module, ast.parse(text, mode="eval").body, depth + 1)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([_type(module, left, depth + 1), _type(module, right, depth + 1)])
        case ast.Subscript(value=base, slice=index):
            return _generic(module, _last_name(base), index, depth)
        case ast.Name(id=name):
            return _named(module, name, depth)
        case ast.Attribute(attr=name):
            return _PLAIN.get(name, Any)
    return Any


def _union(options: list[Any]) -> Any:
    return Any if Any in options else Union[tuple(options)]  # noqa: UP007


def _generic(module: str, base: str, index: ast.expr, depth: int) -> Any:
    items = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    if base == "Literal":
        try:
            return Literal[tuple(ast.literal_eval(item) for item in items)]  # type: ignore[misc]
        except ValueError:
            return Any
    if base == "Annotated":
        return _type(module, items[0], depth + 1)
    if base in ("Callable", "type"):
        return Component
    if base not in _PLAIN:
        return Any
    args = tuple(... if isinstance(i, ast.Constant) and i.value is ... else _type(module, i, depth + 1) for i in items)
    if base in ("Optional", "Union"):
        return _union([*args, *([None] if base == "Optional" else [])])
    try:
        return _PLAIN[base][args]
    except TypeError:
        return Any


def _named(module: str, name: str, depth: int) -> Any:
    bound = top_names(module).get(name)
    match bound:
        case None:
            return _PLAIN.get(name, Any)
        case ast.ClassDef():
            kinds = {_last_name(b) for b in bound.bases}
            return Any if kinds & {"Enum", "StrEnum", "IntEnum", "TypedDict", "str", "int", "float"} else Component
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return Any if isinstance(value, ast.Call) else _type(module, value, depth + 1)
        case ast.ImportFrom():
            origin = _import_origin(module, bound)
            original = next((a.name for a in bound.names if (a.asname or a.name) == name), name)
            if origin in ("typing", "collections.abc", "pathlib", "typing_extensions"):
                return _PLAIN.get(original, Any)
            return _named(origin, original, depth + 1) if origin and _is_first_party(origin) else Any
        case _ if type(bound).__name__ == "TypeAlias":
            return _type(module, bound.value, depth + 1)  # type: ignore[attr-defined]
    return Any


def _is_first_party(module: str) -> bool:
    source = find_source(module)
    return source is not None and not {"site-packages", "dist-packages"} & set(source.parts)


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
