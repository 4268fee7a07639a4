"""A calculator for integers with one operator: ``12*3`` -> ``36``."""

from __future__ import annotations

import operator
import re
from functools import partial

from components.environments.tool_loop import ToolError, ToolLoop

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Calculator(ToolLoop):
    """`ToolLoop` with `calculate` as its tool. Settings as there, and ``max_digits`` per operand."""

    def __init__(self, *, max_digits: int = 9, max_calls: int = 8) -> None:
        if max_digits < 1:
            raise ValueError(f"max_digits must be at least 1, got {max_digits}")
        super().__init__(tool=partial(calculate, max_digits=max_digits), max_calls=max_calls)


def calculate(text: str, *, max_digits: int = 9) -> str:
    """Value of ``[-]a op b`` with op one of ``+ - *`` and a, b of at most ``max_digits`` decimal ASCII digits.

    Raises:
        ToolError: anything else; its message is "error".
    """
    match = re.fullmatch(r" ?(-?[0-9]+) ?([-+*]) ?([0-9]+) ?", text) if len(text) <= 2 * max_digits + 8 else None
    if match is None:
        raise ToolError("error")
    a, sign, b = match.groups()
    if max(len(a.lstrip("-")), len(b)) > max_digits:
        raise ToolError("error")
    return str(_OPERATORS[sign](int(a), int(b)))
