"""A typed Python function as a tool: its JSON schema, and the check of what a policy passes to it."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from components.environments.tool_loop import ToolError


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call.

    Attributes:
        parameters: JSON schema of its arguments.
        arguments: pydantic model that checks them.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    arguments: Any

    @classmethod
    def of(cls, function: Callable[..., Any], *, method: bool = False) -> Tool:
        """The tool of a function; its docstring's first paragraph and its ``Args:`` describe it.

        Args:
            function: every parameter is typed and can be passed by name; keywords of a partial are not the policy's.
            method: its first parameter is the session.

        Raises:
            ValueError: what cannot be a tool; says which function, which parameter, and what to do.
        """
        from pydantic import ConfigDict, Field, create_model  # heavy, and only runs with tools need it

        bound: set[str] = set()
        plain: Any = function
        while isinstance(plain, functools.partial):
            bound |= set(plain.keywords)
            plain = plain.func
        name, place, offered = _signature(plain)
        text, documented = _described(inspect.getdoc(plain) or "")
        fields: dict[str, Any] = {}
        for i, parameter in enumerate(offered[int(method) :]):
            if parameter.name in bound:
                continue
            where = f"{place}: parameter {parameter.name!r}"
            hint = _hint(plain, parameter, where)
            default = ... if parameter.default is parameter.empty else parameter.default
            said = documented.get(parameter.name)
            # Under an alias, as a model has attributes of its own: schema, copy, json, model_config.
            fields[f"p{i}"] = (hint, Field(default, description=said, alias=parameter.name))
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        try:
            model = create_model(name, __config__=config, **fields)
            return cls(name, text, _without_titles(model.model_json_schema()), model)
        except Exception as error:  # each parameter is sound by itself
            raise ValueError(f"{place}: no JSON schema can be made of it ({_brief(error)}). {_TYPES}") from None

    @property
    def schema(self) -> dict[str, Any]:
        """As chat templates take it."""
        described = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": described}

    def check(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Arguments as the function takes them; numbers may come as text. Raises ToolError.

        A text stands for all arguments: its words in the order of the parameters, the rest of it for the last one.
        """
        from pydantic import ValidationError  # heavy, see above

        if isinstance(arguments, str):
            arguments = self._words(arguments)
        try:
            checked = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "arguments"
            raise ToolError(f"{self.name}: {where}: {first['msg']}") from None
        except RecursionError:
            raise ToolError(f"{self.name}: arguments nested too deep") from None
        return {info.alias: getattr(checked, name) for name, info in self.arguments.model_fields.items()}

    def _words(self, text: str) -> dict[str, str]:
        names = [info.alias for info in self.arguments.model_fields.values()]
        if not names:
            return {"text": text} if text.strip() else {}
        words = text.strip().split(maxsplit=len(names) - 1) if len(names) > 1 else [text.strip()]
        return dict(zip(names, (word for word in words if word), strict=False))


_CONTAINERS: frozenset[Any] = frozenset((list, set, frozenset, tuple, dict))
_TYPES = "Fix: use str, int, float, bool, list, dict, Literal, an Enum, a TypedDict or a pydantic model"


def _signature(plain: Any) -> tuple[str, str, list[inspect.Parameter]]:
    """(name, how errors call it, its parameters). Raises ValueError: it is no function that could be called by name."""
    if not callable(plain) or not hasattr(plain, "__name__"):
        kind = f"an object of {type(plain).__module__}.{type(plain).__qualname__}"
        raise ValueError(
            f"tools: {kind} is no function. Fix: write a typed def, or a toolset with name, tools and open"
        )
    name = plain.__name__.strip("_")
    place = f"tool {plain.__module__}.{plain.__name__}"
    if not name.isidentifier():
        raise ValueError(f"{place}: has no name to be called by. Fix: write it as a def with a name")
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise ValueError(f"{place}: is an async function, which nothing would await. Fix: write def, not async def")
    if inspect.isgeneratorfunction(plain):
        raise ValueError(f"{place}: is a generator, whose values nothing would take. Fix: return, do not yield")
    try:
        return name, place, list(inspect.signature(plain).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(f"{place}: its parameters are unknown. Fix: call it from a typed def") from None


def _hint(plain: Any, parameter: inspect.Parameter, where: str) -> Any:
    """Type that arguments for a parameter are checked against. Raises ValueError."""
    from pydantic import TypeAdapter

    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ValueError(f"{where} ({parameter}) cannot be passed by name. Fix: name every one")
    if parameter.name.startswith("_"):
        raise ValueError(f"{where} begins with an underscore. Fix: rename it, e.g. {parameter.name.strip('_') or 'x'}")
    if parameter.annotation is parameter.empty:
        raise ValueError(f"{where} has no type. Fix: annotate it")
    # Alone, as the others' types, and the result's, are no concern of this one.
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(plain), "__globals__", None) or vars(sys.modules.get(plain.__module__, types))
    shown = inspect.formatannotation(parameter.annotation)
    try:
        hint = typing.get_type_hints(alone, globalns=names, include_extras=True)[parameter.name]
    except Exception as error:
        why = f"{where}: the type {shown} cannot be read ({_brief(error)})"
        raise ValueError(f"{why}. Fix: import it where the function is defined, not only for type checkers") from None
    hint = _whole(hint)
    try:
        adapter = TypeAdapter(hint)
        adapter.json_schema()
    except Exception:  # pydantic has a class for each way of failing
        raise ValueError(f"{where}: the type {shown} has no JSON schema. {_TYPES}") from None
    if parameter.default is not parameter.empty and not _fits(adapter, parameter.default):
        why = f"{where}: the default {parameter.default!r:.80} is no {shown}"
        raise ValueError(f"{why}. Fix: change one of them{', e.g. to … | None' if parameter.default is None else ''}")
    return hint


def _fits(adapter: Any, default: Any) -> bool:
    """Whether a value is of a type as it stands, not only after conversion."""
    try:
        checked = adapter.validate_python(default)
        return bool(checked == default) or repr(checked) == repr(default)
    except Exception:
        return False


def _whole(hint: Any) -> Any:
    """A type whose integers are no booleans; pydantic takes true for 1."""
    from pydantic import BeforeValidator

    if hint is int:
        return typing.Annotated[int, BeforeValidator(_no_boolean)]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        kept = (parts[0], *hint.__metadata__)
        return typing.Annotated[
            (*kept, BeforeValidator(_no_boolean)) if parts[0] is int else (_whole(kept[0]), *kept[1:])
        ]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_whole, parts))]  # noqa: UP007
    if parts and origin in _CONTAINERS:
        return origin[tuple(map(_whole, parts))]
    return hint


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        from pydantic_core import PydanticCustomError

        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """First paragraph of a docstring, and what its ``Args:`` say of each parameter."""
    head, _, rest = doc.partition("\nArgs:\n")
    described: dict[str, str] = {}
    last = ""
    for line in rest.splitlines():
        if not line.startswith(" "):
            break
        if line.startswith("    ") and line[4:5] not in (" ", "") and ":" in line:
            last, _, text = line.strip().partition(":")
            described[last] = text.strip()
        elif last:
            described[last] += " " + line.strip()
    return " ".join(head.split("\n\n")[0].split()), described


def _without_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_without_titles(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: _without_titles(part) for name, part in value.items()}
        elif key != "title" or not isinstance(value, str):
            kept[key] = value if key in ("default", "const", "enum") else _without_titles(value)
    return kept
