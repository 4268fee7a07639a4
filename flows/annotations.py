"""The types that annotations stand for, as far as they are plain ones: what a value in yaml can be checked against."""

from __future__ import annotations

import ast
import collections.abc
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union

from flows.modules import find_source, import_origin, last_name, top_names

NODE_KEYS = ("_target_", "_input_", "_env_")  # what makes a mapping a node
CONTENT = "_content_"  # fingerprint of what a component reads from outside
SPECIAL = frozenset({"_target_", "_partial_", CONTENT})  # keys of a component that are no settings of it


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


def plain_type(module: str, node: ast.expr, depth: int = 0) -> Any:
    """The type an annotation stands for; Any where it isn't a plain one."""
    if depth > 12:
        return Any
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return plain_type(module, ast.parse(text, mode="eval").body, depth + 1)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([plain_type(module, left, depth + 1), plain_type(module, right, depth + 1)])
        case ast.Subscript(value=base, slice=index):
            return _generic(module, last_name(base), index, depth)
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
        return plain_type(module, items[0], depth + 1)
    if base in ("Callable", "type"):
        return Component
    if base not in _PLAIN:
        return Any
    args = tuple(... if _is_ellipsis(item) else plain_type(module, item, depth + 1) for item in items)
    if base in ("Optional", "Union"):
        return _union([*args, *([None] if base == "Optional" else [])])
    try:
        return _PLAIN[base][args]
    except TypeError:
        return Any


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _named(module: str, name: str, depth: int) -> Any:
    bound = top_names(module).get(name)
    match bound:
        case None:
            return _PLAIN.get(name, Any)
        case ast.ClassDef():
            kinds = {last_name(b) for b in bound.bases}
            return Any if kinds & {"Enum", "StrEnum", "IntEnum", "TypedDict", "str", "int", "float"} else Component
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return Any if isinstance(value, ast.Call) else plain_type(module, value, depth + 1)
        case ast.ImportFrom():
            origin = import_origin(module, bound)
            original = next((a.name for a in bound.names if (a.asname or a.name) == name), name)
            if origin in ("typing", "collections.abc", "pathlib", "typing_extensions"):
                return _PLAIN.get(original, Any)
            return _named(origin, original, depth + 1) if origin and is_first_party(origin) else Any
        case _ if type(bound).__name__ == "TypeAlias":
            return plain_type(module, bound.value, depth + 1)  # type: ignore[attr-defined]
    return Any


def is_first_party(module: str) -> bool:
    source = find_source(module)
    return module.split(".")[0] == "components" or (
        source is not None and not {"site-packages", "dist-packages"} & set(source.parts)
    )
