"""One spelling for a written mathematical answer: ASCII digits, plain LaTeX commands, no separators of thousands."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

Separator = Literal["comma", "space", "thin"]
THIN = "\u2009"

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−－‐‑", "-"),
        **{"＋": "+", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ", "∓": r"\mp "},
        **{"≈": r"\approx ", "≃": r"\approx ", "≅": r"\approx ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "＝": "="},
        **{"π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "％": "%", "٪": "%", "＄": "$", "￥": "¥"},
        **{"（": "(", "）": ")", "［": "[", "］": "]", "｛": "{", "｝": "}", "／": "/", "⁄": "/", "∕": "/"},
        **{"．": ".", "٫": ".", "。": ".", "，": ",", "٬": ",", "、": ",", "；": ";", "：": ":"},
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f\u061c", ""),
        **dict.fromkeys("\u202f\u2006\u2008", THIN),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2007\u3000\t\r\n", " "),
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_VULGAR = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
           "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
           "⅑": (1, 9), "⅒": (1, 10)}  # fmt: skip
_COMMANDS = (
    *((rf"\{name}frac", r"\frac") for name in "dtc"),
    *((command, THIN) for command in (r"\,", r"\thinspace")),
    *((command, " ") for command in (r"\;", r"\:", r"\ ", r"\quad", r"\qquad", "~")),
    *((command, "") for command in (r"\!", r"\left", r"\right", r"\displaystyle", r"\limits")),
    *((rf"\{name}", rf"\{short}") for name, short in (("leq", "le"), ("geq", "ge"), ("neq", "ne"))),
    ("{,}", ","),
    ("**", "^"),
)
_REPLACED = dict(_COMMANDS)
_COMMAND = re.compile(r"\\[a-zA-Z]+|\\[^a-zA-Z]|~|\{,\}|\*\*")
_SHELLS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_GROUPED = {
    "comma": re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])"),
    "space": re.compile(r"(?<![\d.,])(?<!\d )\d{1,3}(?: \d{3})+(?! ?\d)"),
    "thin": re.compile(rf"(?<![\d.,])(?<!\d{THIN})\d{{1,3}}(?:{THIN}\d{{3}})+(?!{THIN}?\d)"),
}
_DASH = re.compile(r"[–—](?=[\d.\\])")  # for a minus sign; inside a text it may be a range
_MARKS = {"comma": ",", "space": " ", "thin": THIN}


def spelled(text: str, thousands: Sequence[Separator] = ("comma", "thin")) -> str:
    r"""The text in one spelling; nothing that changes what is meant.

    - Decimal digits of every script become ASCII (``٤٢``, ``４２``), raised ones an exponent: ``4²`` is ``4^{2}``.
      This is no compatibility normalisation, which would make 42 of it.
    - A dash before the whole is a minus sign.
    - Signs and LaTeX's alternatives become one command each; delimiters around the whole, ``\left``, spacing and one
      full stop at the end go.
    - Separators of thousands go: "comma" ``1,234,567``, "space" ``1 234 567``, "thin" ``1\,234\,567``. Groups must
      have three digits. Commas inside brackets separate elements and stay.
    """
    text = text if text.isascii() else _ascii_digits(text).translate(_CHARACTERS)
    text = _unwrapped(text.strip())
    if _DASH.match(text):
        text = "-" + text[1:]
    text = _COMMAND.sub(lambda found: _REPLACED.get(found[0], found[0]), text)
    for name in thousands:
        if _MARKS[name] in text and not (name == "comma" and any(bracket in text for bracket in ("(", "[", r"\{"))):
            text = _GROUPED[name].sub(lambda found, mark=_MARKS[name]: found[0].replace(mark, ""), text)
    text = " ".join(text.replace(THIN, " ").split())
    return _without_stop(text)


def _ascii_digits(text: str) -> str:
    text = _RAISED.sub(lambda run: "^{" + run[0].translate(_SUPERSCRIPTS) + "}", text)
    return "".join(_one(c) if c > "\x7f" else c for c in text)


def _one(character: str) -> str:
    if character in _VULGAR:
        above, below = _VULGAR[character]
        return rf"\frac{{{above}}}{{{below}}}"
    return str(unicodedata.decimal(character, character))


def _unwrapped(text: str) -> str:
    """Without delimiters around the whole; ``$4$ or $2$`` has none."""
    while True:
        text = _without_stop(text.strip())
        for opening, closing in _SHELLS:
            inner = text[len(opening) : -len(closing)]
            whole = len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing)
            if whole and opening not in inner and closing not in inner and not inner.endswith("\\"):
                text = inner
                break
        else:
            return text


def _without_stop(text: str) -> str:
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text
