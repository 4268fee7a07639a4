"""What a run's record has to be, so that commands can take it as it is read: anyone may have edited it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

SCHEMA = 1
ID = re.compile(r"^[A-Za-z0-9._-]{1,80}$")


def not_a_record(value: Any) -> str:
    """What keeps a JSON value from being the record of a run; "" if nothing does."""
    if not isinstance(value, Mapping):
        return f"not the record of a run, but {type(value).__name__}"
    if value.get("schema") != SCHEMA:
        return f"schema {value.get('schema')}, this version reads {SCHEMA}"
    name = value.get("id")
    if not isinstance(name, str) or not ID.match(name) or set(name) <= {"."}:
        return f"not the record of a run: id is {name!r}"[:200]
    for key, is_right in _SHAPE.items():
        if (key in value or key in _REQUIRED) and not is_right(value.get(key)):
            return f"not the record of a run: {key} is {value.get(key)!r}"[:200]
    if _has_zone(value.get("ended") or value.get("started")) != _has_zone(value.get("started")):
        return f"not the record of a run: started is {value.get('started')!r}, ended {value['ended']!r}"[:200]
    for stage, entry in value["stages"].items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("state"), str):
            return f"not the record of a run: stage {stage} is {entry!r}"[:200]
        if wrong := [key for key in ("key", "path", "why", "details") if not isinstance(entry.get(key, ""), str)]:
            return f"not the record of a run: {wrong[0]} of stage {stage} is {entry[wrong[0]]!r}"[:200]
        if wrong := [key for key in ("inputs", "settings") if not isinstance(entry.get(key, {}), Mapping)]:
            return f"not the record of a run: {wrong[0]} of stage {stage} is {entry[wrong[0]]!r}"[:200]
    return ""


def completed(record: Mapping[str, Any], written: float) -> dict[str, Any]:
    """A record with all that commands look at.

    Args:
        written: when its file was, in seconds since 1970, in place of a time of starting.
    """
    started = datetime.fromtimestamp(written, UTC).isoformat(timespec="milliseconds")
    return {"pipeline": "?", "started": started, "ended": None, "overrides": [], "addresses": {}, **record}


def _is_time(value: Any) -> bool:
    try:
        return bool(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return False


def _has_zone(value: str | None) -> bool:
    return value is None or datetime.fromisoformat(value).tzinfo is not None


_REQUIRED = ("state", "stages")
_SHAPE: dict[str, Callable[[Any], bool]] = {
    "pipeline": lambda value: isinstance(value, str),
    "state": lambda value: isinstance(value, str),
    "started": _is_time,
    "ended": lambda value: value is None or _is_time(value),
    "overrides": lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
    "addresses": lambda value: isinstance(value, Mapping | None),
    "stages": lambda value: isinstance(value, Mapping),
}
