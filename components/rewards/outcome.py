"""What a term returned, as a typed outcome: scored, abstained, or failed with the cause."""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Iterable, Mapping, Set
from numbers import Real
from typing import Any

from components.types import Score

_FRAMES, _CHARS = 6, 4_000  # of a traceback that is kept; of a reason


def as_score(value: Any) -> Score:
    """The outcome of one call: a finite number is scored, a `Score` is taken as it is, anything else has failed.

    Numbers of numpy and torch count as numbers. A scored `Score` whose total or one of whose terms is no finite number
    has failed.
    """
    if isinstance(value, Score):
        terms = {str(name): _finite(term) for name, term in value.terms.items()}
        if value.outcome not in ("scored", "abstained", "failed"):
            return failed(f"returned a score with the outcome {value.outcome!r}, not scored, abstained or failed")
        if value.outcome != "scored":
            kept = {name: term for name, term in terms.items() if term is not None}
            return Score(0.0, kept, value.outcome, str(value.reason or f"returned a score that {value.outcome}"))
        total = _finite(value.total)
        bad = {name: value.terms[name] for name, term in terms.items() if term is None}
        if total is None or bad:
            return failed(f"returned a score with {_short(bad or {'total': value.total})}, not a finite number")
        return Score(total, {name: term for name, term in terms.items() if term is not None})
    number = _finite(value)
    return failed(f"returned {_short(value)}, not a finite number") if number is None else Score(number)


def as_scores(values: Any, wanted: int) -> list[Score]:
    """The outcomes of one call for several rollouts; all have failed if their number is not ``wanted``."""
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        return [failed(f"returned {_short(values)}, not {wanted} values")] * wanted
    values = list(values)
    if len(values) != wanted:
        return [failed(f"returned {len(values)} values for {wanted} rollouts")] * wanted
    return [as_score(value) for value in values]


def failed(why: str) -> Score:
    """The outcome of a call that gave no score, with the cause."""
    return Score(0.0, {}, "failed", why[:_CHARS])


def raised() -> Score:
    """The outcome of a call that raised; to be called where the exception is handled."""
    return failed(f"raised\n{traceback.format_exc(limit=-_FRAMES).strip()[-_CHARS:]}")


def name_of(term: Any) -> str:
    """Dotted name of a function, of a partial's function or of an object's class, for messages."""
    while isinstance(term, functools.partial):
        term = term.func
    named = term if hasattr(term, "__qualname__") else type(term)
    return f"{named.__module__}.{named.__qualname__}"


def _finite(value: Any) -> float | None:
    if not isinstance(value, Real) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    try:
        return float(value) if isinstance(value, Real) and math.isfinite(value) else None
    except OverflowError:  # an integer beyond any float
        return None


def _short(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
