"""Calling a piece with what its signature names."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return _known_parameters(function)
    except TypeError:  # not hashable
        return inspect.signature(function).parameters


@lru_cache(maxsize=64)  # reading a signature takes longer than a small loss
def _known_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def required(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments without which the function cannot be called."""
    return [name for name, p in parameters(function).items() if p.default is p.empty and p.kind not in _VARIADIC]


def settings(function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that have a value already: defaults, and what a partial sets."""
    return {name: p.default for name, p in parameters(function).items() if p.default is not p.empty}


def setting(function: Callable[..., Any], name: str, default: Any) -> Any:
    """What a partial, or the function itself, gives a keyword; ``default`` if it has no such keyword."""
    found = parameters(function).get(name)
    return default if found is None or found.default is found.empty else found.default


def call(function: Callable[..., Tensor], available: Mapping[str, Any]) -> Tensor:
    """Call with those of the available arguments that the signature names.

    Raises:
        ValueError: one that it requires is not available.
    """
    if missing := [name for name in required(function) if name not in available]:
        raise ValueError(
            f"{name_of(function)} needs {', '.join(missing)}, which was not given; "
            f"given: {', '.join(sorted(available))}"
        )
    return function(**{name: available[name] for name in parameters(function) if name in available})


def base(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under a partial."""
    return getattr(function, "func", function)


def described(piece: Any) -> Any:
    """A piece as the node that would build it, defaults included; what is no piece stays as it is."""
    if is_dataclass(piece) and not isinstance(piece, type):
        kind = type(piece)
        return {"_target_": f"{kind.__module__}.{kind.__qualname__}", **asdict(piece)}
    if callable(piece):
        function = base(piece)
        where = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
        return {"_target_": where, **settings(piece)}
    return piece


def name_of(function: Callable[..., Any]) -> str:
    return getattr(base(function), "__name__", repr(function))
