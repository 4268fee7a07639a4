"""Written numbers: their exact value, per cent signs and units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

# Spellings of units that may stand beside a number, by one name each. Of letters, three or more match in any case.
UNITS: Mapping[str, Sequence[str]] = {
    "dollar": ("$", r"\$", "dollar", "dollars", "USD", "US$"),
    "cent": ("cent", "cents", "¢"),
    "euro": ("€", "euro", "euros", "EUR"),
    "pound sterling": ("£", r"\pounds", "GBP"),
    "yen": ("¥", "yen", "JPY"),
    "degree": ("°", r"^\circ", r"^{\circ}", "degree", "degrees"),
    "millimetre": ("mm", "millimeter", "millimeters", "millimetre", "millimetres"),
    "centimetre": ("cm", "centimeter", "centimeters", "centimetre", "centimetres"),
    "metre": ("m", "meter", "meters", "metre", "metres"),
    "kilometre": ("km", "kilometer", "kilometers", "kilometre", "kilometres"),
    "inch": ("inch", "inches"),
    "foot": ("ft", "foot", "feet"),
    "mile": ("mile", "miles"),
    "square centimetre": ("cm^2", "cm^{2}", "square centimeters", "square centimetres"),
    "square metre": ("m^2", "m^{2}", "square meters", "square metres"),
    "gram": ("g", "gram", "grams"),
    "kilogram": ("kg", "kilogram", "kilograms"),
    "pound": ("lb", "lbs", "pound", "pounds"),
    "litre": ("L", "liter", "liters", "litre", "litres"),
    "second": ("s", "sec", "second", "seconds"),
    "minute": ("min", "minute", "minutes"),
    "hour": ("h", "hour", "hours"),
    "day": ("day", "days"),
    "week": ("week", "weeks"),
    "month": ("month", "months"),
    "year": ("year", "years"),
    "mile per hour": ("mph", "miles per hour"),
    "kilometre per hour": ("km/h", "kilometers per hour", "kilometres per hour"),
}
_PERCENT = (r"\%", "%", "percent", "per cent")
_TEXT = re.compile(r"\\(?:text|textrm|textbf|mathrm|mathbf|mbox|operatorname) ?\{([^{}\\]*)\}")
_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(
    rf"({_DECIMAL})(?:[eE]([+-]?\d{{1,3}})| ?(?:\\times|\\cdot|\*|x) ?10\^(?:\{{(-?\d{{1,3}})\}}|(\d)))?"
)
_RATIO = re.compile(rf"({_DECIMAL}) ?/ ?({_DECIMAL})")
_FRAC = re.compile(rf"\\frac ?(?:\{{ ?(-?{_DECIMAL}) ?\}}|(\d)) ?(?:\{{ ?({_DECIMAL}) ?\}}|(\d))")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline ?\{(\d{1,40})\}")
_MIXED = re.compile(r"(\d+) ?(?:(?<= )(\d+)/(\d+)|\\frac ?\{ ?(\d+) ?\} ?\{ ?(\d+) ?\})")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A spelled answer without its per cent sign and unit."""

    text: str
    percent: bool = False
    unit: str | None = None


class Units:
    """Finds a unit before or after a number. ``units``: name → its spellings; a spelling belongs to one name."""

    def __init__(self, units: Mapping[str, Sequence[str]]) -> None:
        spellings = [(text, name) for name, texts in units.items() for text in texts]
        longest_first = sorted(spellings, key=lambda pair: (-len(pair[0]), pair))
        self._marks = [(text, name) for text, name in longest_first if not text[0].isalpha()]
        self._words = [(text, name) for text, name in longest_first if text[0].isalpha()]

    def split(self, text: str) -> Quantity:
        """Take per cent sign and unit off a spelled answer; an answer that has neither is left as it is."""
        flat = " ".join(_TEXT.sub(r" \1 ", text).split())
        for sign in _PERCENT:
            if flat.endswith(sign) and flat[: -len(sign)].strip():
                return Quantity(flat[: -len(sign)].strip(), percent=True)
        for mark, name in self._marks:
            if flat.endswith(mark) and (rest := flat[: -len(mark)].strip()):
                return Quantity(rest, unit=name)
            sign = "-" if flat.startswith("-") else ""
            if flat.startswith(sign + mark) and (rest := flat[len(sign + mark) :].strip()):
                return Quantity(sign + rest, unit=name)
        for word, name in self._words:
            rest = flat[: -len(word)]
            same = flat.endswith(word) or (len(word) > 2 and flat[len(rest) :].casefold() == word.casefold())
            # "42m" may be an expression in m, "42 m" and "42cm" may not.
            if same and rest.strip() and (rest[-1] in " }" or (rest[-1].isdigit() and len(word) > 1)):
                return Quantity(rest.strip(), unit=name)
        return Quantity(text)


def exact_value(text: str) -> Fraction | None:
    r"""Value of a spelled number: ``-1234.5``, ``1e3``, ``1.2 \times 10^3``, ``2/3``, ``\frac{2}{3}``, ``1 1/2``,
    ``0.1\overline{6}``.

    None for anything else, expressions and divisions by zero included.
    """
    text = _without_braces(text)
    sign = text[:1] if text[:1] in "+-" else ""
    body = text[len(sign) :].lstrip()
    try:
        value = _unsigned(body)
    except (ZeroDivisionError, ValueError):  # the second: more digits than int() takes
        return None
    return None if value is None else -value if sign == "-" else value


def _unsigned(text: str) -> Fraction | None:
    if match := _PLAIN.fullmatch(text):
        exponent = next(_given(match.groups()[1:]), "0")
        return Fraction(match[1]) * Fraction(10) ** int(exponent)
    if match := _RATIO.fullmatch(text):
        return Fraction(match[1]) / Fraction(match[2])
    if match := _FRAC.fullmatch(text):
        above, below = _given(match.groups())
        return Fraction(above) / Fraction(below)
    if match := _REPEATING.fullmatch(text):
        whole, start, again = match.groups()
        known, period = Fraction(f"{whole or 0}.{start or 0}"), Fraction(int(again), 10 ** len(again) - 1)
        return known + period / 10 ** len(start)
    if match := _MIXED.fullmatch(text):
        whole, above, below = _given(match.groups())
        return int(whole) + Fraction(int(above), int(below))
    return None


def _given(groups: Iterable[str | None]) -> Iterator[str]:
    return iter([group for group in groups if group])


def _without_braces(text: str) -> str:
    while len(text) > 2 and text[0] == "{" and text[-1] == "}" and "{" not in text[1:-1]:
        text = text[1:-1].strip()
    return text
