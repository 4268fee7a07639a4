"""A calculator as a tool: whole numbers and decimals, + - * / % and brackets, exact."""

from __future__ import annotations

import ast
import operator
from fractions import Fraction

from components.environments.tool_loop import ToolError

_MAX_CHARS, _MAX_DIGITS = 200, 30
_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculator(expression: str) -> str:
    """Compute an arithmetic expression exactly.

    Args:
        expression: numbers with + - * / // % and brackets, for example 12*(3+4).
    """
    if len(expression) > _MAX_CHARS or not expression.isascii():
        raise ToolError("not an arithmetic expression")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError("not an arithmetic expression") from None
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.12g}"


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = Fraction(str(node.value))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        value = Fraction(_BINARY[type(node.op)](_value(node.left), _value(node.right)))
    else:
        raise ValueError("no arithmetic")
    if max(abs(value.numerator), value.denominator) >= 10**_MAX_DIGITS:
        raise ValueError("too large")
    return value
