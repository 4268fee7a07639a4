"""Tuples, intervals, sets and lists of numbers, read without an algebra system (which needs 20 ms for a pair)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from components.rewards.numerals import exact_value

_ORDERED = ("()", "[]", "[)", "(]")


@dataclass(frozen=True, slots=True)
class Sequence:
    """Several numbers; ``brackets`` is "()", "[]", "[)" or "(]" where the order counts, "{}" or "" where it doesn't."""

    brackets: str
    values: tuple[Fraction, ...]

    def equals(self, other: Sequence, tolerance: Fraction) -> bool:
        """Whether the other, of the same brackets, has the same values, each within the relative tolerance of ours."""
        if len(self.values) != len(other.values):
            return False
        mine, theirs = self.values, other.values
        if self.brackets not in _ORDERED:
            mine, theirs = tuple(sorted(mine)), tuple(sorted(theirs))
        return all(abs(b - a) <= tolerance * abs(a) for a, b in zip(mine, theirs, strict=True))


def read_sequence(text: str) -> Sequence | None:
    r"""The numbers of a spelled ``(1, 2)``, ``[0, 1)``, ``\{1, 2\}`` or ``1, 2``; None for anything else."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        brackets, inner = "{}", text[2:-2]
    elif text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        brackets, inner = text[0] + text[-1], text[1:-1]
    else:
        brackets, inner = "", text
    values = [exact_value(part.strip()) for part in inner.split(",")]
    if (len(values) < 2 and brackets != "{}") or any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    return Sequence(brackets, tuple(set(known)) if brackets == "{}" else tuple(known))
