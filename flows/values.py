"""Whether a value from yaml fits a type, and the form it is kept in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from flows.annotations import NODE_KEYS, Component
from flows.errors import Problem, did_you_mean
from flows.signature import Parameter

# What pydantic asks for inside a container, in words.
_WORDS = {
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping, key: value",
}


def type_problem(where: str, key: str, parameter: Parameter, value: Any) -> Problem | None:
    if isinstance(value, Mapping) and "_input_" in value:
        return None
    from pydantic import ValidationError  # 0.1 s, shared by all checks

    try:
        _adapter(parameter.type).validate_json(json.dumps(_stand_in(value)), strict=True)
    except ValidationError as error:
        found = [(*_place(value, e["loc"]), e["type"]) for e in error.errors()]
        at, got, kind = max(found, key=lambda place: len(place[0]))
        if at and kind in _WORDS:
            return Problem(where, ".".join([key, *at]), f"expects {_WORDS[kind]}", got=got, fix=f"write {_WORDS[kind]}")
        expected = (
            "one of " + ", ".join(map(repr, options)) if (options := literals(parameter.type)) else parameter.text
        )
        return Problem(where, ".".join([key, *at]), f"expects {expected}", got=got, fix=_type_remedy(parameter, value))
    return None


def _place(value: Any, steps: Sequence[Any]) -> tuple[list[str], Any]:
    """Where in ``value`` pydantic's error lies; steps that name a branch of a union are left out."""
    at: list[str] = []
    for step in steps:
        in_list = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if in_list or (isinstance(value, Mapping) and step in value):
            at.append(str(step))
            value = value[step]  # type: ignore[index]
    return at, value


def _type_remedy(parameter: Parameter, value: Any) -> str:
    if (allowed := literals(parameter.type)) and isinstance(value, str):
        return did_you_mean(value, map(str, allowed))
    if isinstance(value, str) and "str" not in parameter.text:
        return "write a value of that type, without quotes, or a component with _target_"
    return "write a value of that type"


_adapters: dict[int, tuple[Any, Any]] = {}


def _adapter(kind: Any) -> Any:
    """Pydantic's checker for a type, made once. Keyed by identity: types are cached with their signature."""
    from pydantic import TypeAdapter

    if id(kind) not in _adapters:
        _adapters[id(kind)] = (kind, TypeAdapter(_or_component(kind)))
    return _adapters[id(kind)][1]


def _or_component(kind: Any) -> Any:
    """``kind`` with each container type widened to "or a component that makes one"."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in (list, tuple, dict, set, frozenset):
        return Union[kind, Component]  # noqa: UP007
    if origin is Literal or origin is None:
        return kind
    inner = tuple(arg if arg is ... else _or_component(arg) for arg in args)
    if origin in (Union, UnionType):
        return Union[inner]  # noqa: UP007
    return Union[origin[inner], Component]  # noqa: UP007


def literals(kind: Any) -> list[Any]:
    """The values a Literal allows, one inside a union included; empty for other types."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [v for arg in get_args(kind) for v in literals(arg)] if get_origin(kind) in (Union, UnionType) else []


def _stand_in(value: Any) -> Any:
    """The value with what only a worker knows (secrets, input directories) replaced by some text."""
    if isinstance(value, Mapping):
        return "text" if "_env_" in value or "_input_" in value else {k: _stand_in(v) for k, v in value.items()}
    return [_stand_in(item) for item in value] if isinstance(value, list) else value


def canonical(value: Any, kind: Any) -> Any:
    """``value`` in the form its type says: whole numbers become floats, so that lr=1 and lr=1.0 give one stage key."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if type(value) is int and float in options and int not in options:
        return float(value)
    kind = next((k for k in options if get_args(k) and get_origin(k) is not Literal), None)
    args = get_args(kind)
    if isinstance(value, Mapping) and not any(k in value for k in NODE_KEYS) and len(args) == 2:
        return {k: canonical(v, args[1]) for k, v in value.items()}
    if isinstance(value, list) and args:
        return [
            canonical(v, args[i] if len(args) == len(value) and ... not in args else args[0])
            for i, v in enumerate(value)
        ]
    return value
