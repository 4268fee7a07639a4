"""What cannot be right in the settings of a mix or a route, told without importing what it is made of."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]

NORMS = ("batch", "group")
_SOURCES = ("kind", "family", "verifier")


def mix_check(settings: Settings) -> list[str]:
    """Problems of a `Mix`: ``key: what is wrong (got …). Fix: the remedy``.

    Weights of unknown names, negative ones, weights that are all 0 and a number of workers under 1 are told by the
    checks that hold for every component; see `common_problems`.
    """
    terms = [str(name) for name in settings["terms"]]
    return [
        *_names(settings, terms),
        *_weights(settings, terms),
        *_active(settings),
        *_ramps(settings),
        *_gates(settings, terms),
        *_norms(settings),
        *figure_problems(settings),
    ]


def common_problems(settings: Settings) -> list[str]:
    """What `mix_check` leaves to the checks of every component."""
    terms, weights, penalties = settings["terms"], settings["weights"], settings["penalties"]
    problems = [
        f"weights.{name}: there is no term of that name. Fix: one of {_listed(terms)}"
        for name in weights
        if name not in terms
    ]
    problems += [
        f"weights.{name}: must not be negative (got {weight}). Fix: write 0 to switch the term off, or name it in "
        "penalties if it measures something bad"
        for name, weight in weights.items()
        if weight < 0 and name not in penalties
    ]
    if settings["workers"] < 1:
        problems.append(f"workers: must be at least 1 (got {settings['workers']})")
    if not any(weights.values()):
        problems.append(f"weights: all are 0 (got {dict(weights)}). Fix: give at least one term a weight")
    return problems


def call_problems(terms: Mapping[str, Any]) -> list[str]:
    """Terms that cannot be called with a task and a rollout: an argument is left over, or there is one too many."""
    problems = []
    for name, term in terms.items():
        if not callable(term) or hasattr(term, "batch"):
            continue
        try:
            signature = inspect.signature(term)
        except (TypeError, ValueError):  # written in C
            continue
        try:
            signature.bind("task", "rollout")
        except TypeError as error:
            fix = f"give it (task, rollout); further arguments with reward.terms.{name}.ARGUMENT=…"
            problems.append(f"terms.{name}: cannot be called with (task, rollout): {error}. Fix: {fix}")
    return problems


def route_check(settings: Settings) -> list[str]:
    """Problems of a `Route`."""
    by, routes = settings["by"], settings["routes"]
    problems = (
        [] if routes else ["routes: there are none. Fix: write source: {_target_: components.rewards.mix.Mix, …}"]
    )
    if by not in _SOURCES and not (by.startswith("meta.") and len(by) > len("meta.")):
        problems.append(f"by: no such part of a task (got {by!r}). Fix: one of {', '.join(_SOURCES)}, meta.<name>")
    return problems


def _names(settings: Settings, terms: Sequence[str]) -> Iterator[str]:
    for name in terms:
        if not name.replace("_", "").replace("-", "").isalnum():
            yield f"terms: {name!r} is no name. Fix: use letters, digits, dash and underscore"
    for key in ("active", "ramps", "normalise", "penalties"):
        for name in settings.get(key) or ():
            if name not in terms:
                yield f"{key}: no such term {name!r}. Fix: one of {_listed(terms)}"


def _weights(settings: Settings, terms: Sequence[str]) -> Iterator[str]:
    weights = settings["weights"]
    if missing := [name for name in terms if name not in weights]:
        yield (
            f"weights: must have the same names as terms; {_listed(missing)} has none. "
            f"Fix: write weights.{missing[0]}=0.1, or 0 to switch it off"
        )
    for name, weight in weights.items():
        if isinstance(weight, float) and not math.isfinite(weight):
            yield f"weights.{name}: is not a finite number (got {weight}). Fix: write one"


def _active(settings: Settings) -> Iterator[str]:
    for name, span in (settings.get("active") or {}).items():
        if len(span) != 2 or not 0 <= span[0] < span[1] <= 1:
            yield (
                f"active.{name}: expects two shares of the steps, from < to, between 0 and 1 (got {list(span)}). "
                "Fix: [0.75, 1.0] is the last quarter"
            )


def _ramps(settings: Settings) -> Iterator[str]:
    for name, points in (settings.get("ramps") or {}).items():
        pairs = all(len(point) == 2 for point in points)
        at = [point[0] for point in points] if pairs else []
        if not pairs or len(at) < 2 or at != sorted(set(at)) or not 0 <= at[0] <= at[-1] <= 1:
            got = [list(point) for point in points]
            yield (
                f"ramps.{name}: expects points [share of the steps, factor], shares rising from 0 to 1 (got {got}). "
                "Fix: [[0.5, 0], [0.8, 1]] rises from 0 at half to the whole weight at four fifths"
            )
        elif any(not math.isfinite(point[1]) or point[1] < 0 for point in points):
            yield f"ramps.{name}: a factor is negative or no number (got {[p[1] for p in points]}). Fix: use 0 or more"


def _gates(settings: Settings, terms: Sequence[str]) -> Iterator[str]:
    for name, conditions in (settings.get("gates") or {}).items():
        for other, threshold in conditions.items():
            if name not in terms or other not in terms:
                unknown = name if name not in terms else other
                yield f"gates: no such term {unknown!r}. Fix: one of {_listed(terms)}"
            elif name == other:
                yield f"gates.{name}: a term cannot be its own condition. Fix: name another one"
            elif not math.isfinite(threshold):
                yield f"gates.{name}.{other}: is not a finite number (got {threshold}). Fix: write one"


def _norms(settings: Settings) -> Iterator[str]:
    for name, over in (settings.get("normalise") or {}).items():
        if over not in NORMS:
            yield f"normalise.{name}: expects {' or '.join(NORMS)} (got {over!r}). Fix: write one of them"


def figure_problems(settings: Settings) -> list[str]:
    """Problems of the figures that `Isolated` and `Mix` share."""
    problems = []
    if not 0 < settings.get("seconds", 1) < math.inf:
        problems.append(f"seconds: must be positive and finite (got {settings['seconds']}). Fix: 10 is usual")
    if settings.get("retries", 0) < 0:
        problems.append(f"retries: must not be negative (got {settings['retries']}). Fix: 0 is off")
    return problems


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"
