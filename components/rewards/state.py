"""Whether an episode left the world as a task asks for, judged from its final state after the episode.

The state is the environment's own record (``Rollout.state``): nothing that a policy writes and nothing that a tool
says is read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FORMS = ("$absent", "$contains", "$near", "$rows", "$exactly")


def reached(expected: Any, state: Any) -> tuple[int, int]:
    """(conditions that hold, conditions) of an expectation on a state.

    A mapping asks for each of its keys and lets others be; anything else must be equal, of the same type. A key of the
    state that begins with ``$`` is written with one more. A mapping with one key of these is a condition
    of its own:

    * ``{"$absent": true}``: there is no such key.
    * ``{"$contains": text}``: a text with this in it.
    * ``{"$near": [number, tolerance]}``: a number.
    * ``{"$rows": [...]}``: a list with these entries in any order.
    * ``{"$exactly": {...}}``: a mapping with these keys and no others.

    Raises:
        ValueError: a form that is none of these.
    """
    return _reached(expected, state, present=True)


def check_problem(expected: Any) -> str | None:
    """What is wrong with a task's check, None if nothing."""
    try:
        total = reached(expected, {})[1]
    except (ValueError, TypeError) as error:
        return str(error)
    return None if total else "it has no condition, so that every state would pass"


def _reached(expected: Any, state: Any, present: bool) -> tuple[int, int]:
    if not isinstance(expected, Mapping):
        return int(present and _same(expected, state)), 1
    if any(str(key).startswith("$") and not str(key).startswith("$$") for key in expected):
        return int(_holds(expected, state, present)), 1
    inside = state if present and isinstance(state, Mapping) else {}
    named = {_meant(key): value for key, value in expected.items()}
    parts = [_reached(value, inside.get(key), key in inside) for key, value in named.items()]
    return sum(met for met, _ in parts), sum(count for _, count in parts)


def _holds(form: Mapping[str, Any], state: Any, present: bool) -> bool:
    name, wanted = next(iter(form.items()))
    if len(form) != 1 or name not in _FORMS:
        raise ValueError(f"check: no such condition {dict(form)!r}. Fix: one key of {', '.join(_FORMS)}")
    if name == "$absent":
        return not present
    if not present:
        return False
    if name == "$contains":
        return isinstance(state, str) and str(wanted) in state
    if name == "$near":
        value, tolerance = wanted
        return isinstance(state, int | float) and not isinstance(state, bool) and abs(state - value) <= tolerance
    if name == "$rows":
        return _same_rows(wanted, state)
    if not isinstance(state, Mapping) or set(state) != set(map(_meant, wanted)):
        return False
    met, count = _reached(wanted, state, True)
    return met == count


def _meant(key: Any) -> Any:
    return key[1:] if isinstance(key, str) and key.startswith("$$") else key


def _same(a: Any, b: Any) -> bool:
    """Equal, a whole number and a truth value apart."""
    if isinstance(a, Sequence) and not isinstance(a, str):
        return isinstance(b, Sequence) and not isinstance(b, str) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and set(a) == set(b) and all(_same(a[key], b[key]) for key in a)
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def _same_rows(wanted: Sequence[Any], state: Any) -> bool:
    if not isinstance(state, Sequence) or isinstance(state, str) or len(state) != len(wanted):
        return False
    left = list(state)
    for row in wanted:
        place = next((i for i, other in enumerate(left) if _same(row, other)), None)
        if place is None:
            return False
        del left[place]
    return True
