"""A typed Python function as a tool: its JSON schema, and the check of what a policy passes to it."""

from __future__ import annotations

import functools
import inspect
import typing
import warnings
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
            ValueError: no function of its own name, one that has to be awaited or yields, a parameter without a type,
                of an unknown one, with a default of another, or one that cannot be passed by name.
        """
        bound: set[str] = set()
        plain = function
        while isinstance(plain, functools.partial):
            bound |= set(plain.keywords)
            plain = plain.func
        name = str(getattr(plain, "__name__", "")).strip("_")
        if not name.isidentifier():
            raise ValueError(f"tools: {plain!r} is no function with a name. Fix: def NAME(...)")
        if (
            inspect.iscoroutinefunction(plain)
            or inspect.isgeneratorfunction(plain)
            or inspect.isasyncgenfunction(plain)
        ):
            raise ValueError(
                f"tool {name}: has to be awaited, or yields. Fix: a plain function that returns its result"
            )
        try:
            hints = typing.get_type_hints(plain, include_extras=True)
        except Exception as error:  # whatever an annotation raises
            raise ValueError(
                f"tool {name}: its annotations cannot be read ({error}). Fix: import what they name"
            ) from None
        text, documented = _described(inspect.getdoc(plain) or "")
        fields: dict[str, Any] = {}
        for parameter in list(inspect.signature(plain).parameters.values())[int(method) :]:
            if parameter.name in bound:
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ValueError(f"tool {name}: parameter {parameter} cannot be passed by name. Fix: name every one")
            if parameter.name not in hints:
                raise ValueError(f"tool {name}: parameter {parameter.name!r} has no type. Fix: annotate it")
            if parameter.name.startswith(("_", "model_")):
                raise ValueError(f"tool {name}: no parameter can be called {parameter.name!r}. Fix: another name")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default, documented.get(parameter.name))
        model = _arguments(name, fields)
        return cls(name, text, _without_titles(model.model_json_schema()), model)

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
        return {name: getattr(checked, name) for name in self.arguments.model_fields}

    def _words(self, text: str) -> dict[str, str]:
        names = list(self.arguments.model_fields)
        if not names:
            return {"text": text} if text.strip() else {}
        words = text.strip().split(maxsplit=len(names) - 1) if len(names) > 1 else [text.strip()]
        return dict(zip(names, (word for word in words if word), strict=False))


def _arguments(name: str, parameters: Mapping[str, tuple[Any, Any, str | None]]) -> Any:
    """Pydantic model of a tool's parameters: type, default and description of each. Raises ValueError."""
    from pydantic import ConfigDict, Field, ValidationError, create_model  # heavy, and only runs with tools need it
    from pydantic.errors import PydanticUserError

    for key, (kind, default, _) in parameters.items():
        try:
            alone = create_model(name, value=(kind, ...))
            alone.model_json_schema()
            if default is not ... and default is not None:
                alone.model_validate({"value": default})
        except (PydanticUserError, TypeError):
            raise ValueError(f"tool {name}: {key!r} is {kind!r}, which has no JSON schema. Fix: plain types") from None
        except ValidationError:
            text = f"the default of {key!r} is {default!r}, not {kind!r}"
            raise ValueError(f"tool {name}: {text}. Fix: a default of that type") from None
    fields: dict[str, Any] = {key: (kind, Field(d, description=text)) for key, (kind, d, text) in parameters.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names that models have methods of, as schema and copy
        return create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)


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
