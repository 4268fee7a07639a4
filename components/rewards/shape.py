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
_BASE = re.compile(r"\(?[0-9A-Fa-f]+\)?_(?:\{)?(\d+)\}?")
_LETTERS = re.compile(r"\\?[a-zA-Z]+")
_OPERATION = re.compile(
    r"(?<=[\d)}!]) ?(?:[-+*/:]|\\(?:times|cdot|div)\b) ?(?=[-\d({\\])"
    r"|\\(?:max|min|gcd|lcm|[dt]?binom|bmod|pmod|mod|sum|prod|log|ln|lg|exp|lfloor|lceil)(?![a-zA-Z])"
)
_TURNED = re.compile(r"= ?([A-Za-z]|\\[a-zA-Z]{1,20})$")
_BOUND = re.compile(r"([a-zA-Z]) ?(<|>|\\[lg]e(?![a-zA-Z])) ?([^<>=]+)")
_BOUNDS = re.compile(r"([^<>=]+?) ?(<|\\le(?![a-zA-Z])) ?([a-zA-Z]) ?(<|\\le(?![a-zA-Z])) ?([^<>=]+)")


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
    """``42`` of ``x = 42`` and ``42 = x``: what a variable equals, where there is one equals sign."""
    text = _turned(text)
    match = _NAME.match(text)
    return text[match.end() :].strip() if match and text.count("=") == 1 else text


def _turned(text: str) -> str:
    """``x = 42`` of ``42 = x``."""
    match = _TURNED.search(text)
    if match is None or text.count("=") > 1 or _NAME.match(text):
        return text
    return f"{match[1]} = {text[: match.start()].strip()}"


def as_interval(text: str) -> str:
    r"""``(-\infty,5]`` of ``x \le 5``, ``(1,2]`` of ``1 < x \le 2``; anything else as it is."""
    if match := _BOUND.fullmatch(text):
        _, sign, bound = match.groups()
        bound = bound.strip()
        below, above = ("(", ")") if sign in "<>" else ("[", "]")
        return rf"(-\infty,{bound}{above}" if sign in ("<", r"\le") else rf"{below}{bound},\infty)"
    if match := _BOUNDS.fullmatch(text):
        low, first, _, second, high = match.groups()
        return f"{'(' if first == '<' else '['}{low.strip()},{high.strip()}{')' if second == '<' else ']'}"
    return text


def words(text: str) -> frozenset[str]:
    """Words of prose: two or more letters that are no command and no function."""
    found = (run for run in _LETTERS.findall(text) if run[0] != "\\" and len(run) > 1)
    return frozenset(run.lower() for run in found) - _FUNCTIONS


def is_worked_out(text: str) -> bool:
    r"""Whether no sum, product or maximum is left to do: not ``6 \times 7``; ``\frac{1}{2}`` and ``2^{10}`` are."""
    return _OPERATION.search(text) is None


def brackets(text: str) -> str:
    r"""The bracket that an answer of several values stands in: ``(``, ``[``, ``(]``, …; "" for a set or a plain list.

    ``(1,3)`` is a pair or an interval, ``\{1,3\}`` and ``1,3`` are values in any order.
    """
    return text[0] + text[-1] if text and text[0] in "([" and text[-1] in ")]" else ""


def marks(text: str) -> tuple[int, ...]:
    r"""How often signs occur that algebra drops and that change what is meant: ``'``, ``"``, dots, a lone brace."""
    dots = sum(text.count(command) for command in (r"\ldots", r"\dots", r"\cdots", "..."))
    return text.count("'") + text.count(r"\prime"), text.count('"'), dots, text.count("{") - text.count("}")


def base(text: str) -> str | None:
    """The base that a number is written in, ``8`` of ``2516_8`` and ``2516_{8}``; None if there is none."""
    match = _BASE.fullmatch(text)
    return match[1] if match else None


def name_of(text: str) -> str:
    """``x`` of ``x = 42``, see `without_name`; "" without a name."""
    text = _turned(text)
    match = _NAME.match(text)
    return match[0].rstrip("= ") if match and text.count("=") == 1 else ""


def told_apart(gold: str, mine: str) -> tuple[str, str]:
    """The texts with capitals renamed where the small letter occurs too: the algebra system reads all letters as small.

    ``N`` is not ``n``; a letter that occurs in neither text stands for it.
    """
    both = [[t for t in _TOKEN.findall(text)] for text in (gold, mine)]
    letters = {c for tokens in both for t in tokens if _is_symbols(t) for c in t}
    free = iter(sorted(set("abcdfghjklmnopqrstuvwxyz") - {c.lower() for c in letters}))
    renamed = {c: next(free, c) for c in sorted(letters) if c.isupper() and c.lower() in letters}
    if not renamed:
        return gold, mine
    table = str.maketrans(renamed)
    first, second = ("".join(t.translate(table) if _is_symbols(t) else t for t in tokens) for tokens in both)
    return first, second


def _is_symbols(token: str) -> bool:
    return token[0].isalpha() and token.lower() not in _FUNCTIONS and len(token) < 4
