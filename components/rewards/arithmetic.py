"""Exact value of an expression of numbers, ``+ - * / ^`` and brackets, already cut into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

OPERATORS = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}  # and how tightly they bind
MAX_TOKENS = 64
_MAX_BITS = 2048
_MAX_EXPONENT = 64
Number = int | Fraction


class _Unfit(Exception):
    """No complete expression, or a value that is not worth having."""


def is_number(token: str) -> bool:
    """Whether a token is a number: digits with at most one point."""
    return token[-1].isdigit()


def value(tokens: Sequence[str]) -> Number | None:
    """Exact value; None if the tokens are no complete expression, divide by zero, or are too many or too large.

    ``^`` binds to the right; a minus sign may stand before the first number and after a bracket.
    """
    if not 0 < len(tokens) <= MAX_TOKENS:
        return None
    try:
        return _evaluate(tokens)
    except (_Unfit, ZeroDivisionError):
        return None


def rounds_to(tokens: Sequence[str], exact: Number) -> bool:
    """Whether the tokens are one decimal, and ``exact`` rounded to its places (halves both ways)."""
    number = tokens[-1]
    places = len(number.partition(".")[2])
    if not places or list(tokens[:-1]) not in ([], ["-"]):
        return False
    written = -Fraction(number) if len(tokens) == 2 else Fraction(number)
    return abs(written - exact) * 2 <= Fraction(1, 10**places)


def _evaluate(tokens: Sequence[str]) -> Number:
    values: list[Number] = []
    pending: list[str] = []
    previous = "("
    for token in tokens:
        operand_due = previous == "(" or previous in OPERATORS
        if is_number(token) or token == "(":
            _require(operand_due)
            if token == "(":
                pending.append(token)
            else:
                values.append(Fraction(token) if "." in token else int(token))
        elif token == ")":
            _require(not operand_due)
            _reduce(values, pending, 0)
            _require(bool(pending))
            pending.pop()
        elif operand_due:  # a sign: 0 - …
            _require(token == "-" and previous == "(")
            values.append(0)
            pending.append(token)
        else:
            _reduce(values, pending, OPERATORS[token] + (token == "^"))
            pending.append(token)
        previous = token
    _require(previous not in OPERATORS and previous != "(")
    _reduce(values, pending, 0)
    _require(not pending)
    return values[0]


def _reduce(values: list[Number], pending: list[str], binding: int) -> None:
    """Apply what waits and binds at least as tightly, back to the last open bracket."""
    while pending and pending[-1] != "(" and OPERATORS[pending[-1]] >= binding:
        right, left = values.pop(), values.pop()
        values.append(_apply(pending.pop(), left, right))
        _require(max(abs(values[-1].numerator), values[-1].denominator).bit_length() <= _MAX_BITS)


def _apply(operator: str, left: Number, right: Number) -> Number:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return Fraction(left) / right
    _require(right.denominator == 1 and abs(right) <= _MAX_EXPONENT)
    return Fraction(left) ** int(right)


def _require(condition: bool) -> None:
    if not condition:
        raise _Unfit
