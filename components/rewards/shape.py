"""What kind of answer a spelled text is: one value, several, a relation, an approximation – or prose."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["one", "several", "relation", "about"]

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[a-zA-Z]+|\d[\d.]*|.", re.DOTALL)
_ABOUT = frozenset({r"\approx", r"\sim", r"\simeq", r"\cong", r"\doteq", "≈", "∼"})
_SEVERAL = frozenset(
    {r"\pm", r"\mp", r"\lor", r"\vee", r"\land", r"\wedge", r"\cup", r"\cap", r"\{", "or", "and", "|", ";"}
)
_RELATION = frozenset(
    {"=", "<", ">", *(rf"\{n}" for n in ("le", "ge", "ne", "lt", "gt", "in", "equiv", "to", "ll", "gg"))}
)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt max min gcd lcm mod det "
    "pi frac begin end pmatrix bmatrix vmatrix matrix array cases".split()
)
_NAME = re.compile(r"(?:[A-Za-z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w{1,20}\}))?(?:\([a-z]\))? ?=(?![=<>])")
_LETTERS = re.compile(r"\\?[a-zA-Z]+")
_OPERATION = re.compile(r"(?<=[\d)}!]) ?(?:[-+*/:]|\\(?:times|cdot|div)\b) ?(?=[-\d({\\])")


def kind_of(text: str) -> Kind:
    r"""The kind of a spelled answer.

    "about": it holds a sign of approximation. "relation": ``=``, ``<``, ``\in`` and the like. "several": a comma or
    ``;`` outside brackets, "or", "and", ``±``, a set, a union, a tuple or interval, or two numbers side by side.
    """
    depth, after_number, kinds = 0, False, {"several"} if text.startswith("[") else set[str]()
    for token in _TOKEN.findall(text):
        if token in _ABOUT:
            return "about"
        if token in _RELATION:
            kinds.add("relation")
        elif (
            token in _SEVERAL
            or (token == "," and depth == 0)
            or (token == "," and text[0] in "([")
            or (after_number and token[0].isdigit())
        ):
            kinds.add("several")
        depth += (token in _OPEN) - (token in _CLOSE)
        after_number = token[0].isdigit() or (token == " " and after_number)
    return "relation" if "relation" in kinds else "several" if kinds else "one"


def without_name(text: str) -> str:
    """``42`` of ``x = 42``: the right side, where the left is one variable and there is one equals sign."""
    match = _NAME.match(text)
    return text[match.end() :].strip() if match and text.count("=") == 1 else text


def words(text: str) -> frozenset[str]:
    """Words of prose: two or more letters that are no command and no function."""
    found = (run for run in _LETTERS.findall(text) if run[0] != "\\" and len(run) > 1)
    return frozenset(run.lower() for run in found) - _FUNCTIONS


def is_worked_out(text: str) -> bool:
    r"""Whether no sum, product or quotient is left to do: not ``6 \times 7``, but ``\frac{1}{2}``, ``2^{10}``."""
    return _OPERATION.search(text) is None
