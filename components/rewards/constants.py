"""Literal expressions as values, without running anything."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_MAX_SIZE = 100_000  # characters or items of a repeated sequence
_MAX_BITS = 10_000
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class NotConstant(ValueError):
    """An expression that is no literal, nor arithmetic on literals."""


def constant(node: ast.expr) -> Any:
    """Value of a literal: numbers, strings, bytes, containers, and arithmetic and concatenation of them.

    Raises:
        NotConstant: anything else, or a result too large to be meant.
    """
    match node:
        case ast.Constant(value=value) if value is not ...:
            return value
        case ast.List(elts=items):
            return [constant(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(constant(item) for item in items)
        case ast.Set(elts=items):
            return _tried(lambda: {constant(item) for item in items})
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            return _tried(lambda: {constant(k): constant(v) for k, v in zip(keys, values, strict=True) if k})
        case ast.Call(func=ast.Name(id="set"), args=[], keywords=[]):
            return set()
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = constant(operand)
            return _tried(lambda: -value if isinstance(sign, ast.USub) else +value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _arithmetic(type(op), constant(left), constant(right))
    raise NotConstant(f"{ast.unparse(node)[:80]} is no literal")


def _arithmetic(op: type[ast.operator], a: Any, b: Any) -> Any:
    if op is ast.Mod and not isinstance(a, int | float):
        raise NotConstant("formatting")
    if op is ast.Mult:
        for sequence, count in ((a, b), (b, a)):
            if (
                isinstance(sequence, str | bytes | list | tuple)
                and isinstance(count, int)
                and len(sequence) * count > _MAX_SIZE
            ):
                raise NotConstant("a sequence too long")
    if op is ast.Pow and isinstance(a, int) and isinstance(b, int) and a.bit_length() * abs(b) > _MAX_BITS:
        raise NotConstant("a number too large")
    return _tried(lambda: _OPERATORS[op](a, b))


def _tried(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except (TypeError, ArithmeticError, ValueError) as error:
        raise NotConstant(str(error)) from None
