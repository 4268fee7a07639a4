"""What differs between two builds of a stage, said in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_ABSENT = object()


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Differences between what two builds of a stage were made of, the most telling kind first.

    Args:
        old, new: ``target``, ``settings``, ``seed``, ``source`` (file → digest), ``parents`` (input name → ``stage``,
            ``key``, ``digest``; None for one that is itself still to be built, of which nothing is said).
    """
    found = []
    if old.get("target") != new["target"]:
        found.append(f"target: {old.get('target')} → {new['target']}")
    before, after = dict(_flat(old.get("settings", {}))), dict(_flat(new["settings"]))
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path, _ABSENT), after.get(path, _ABSENT)
        if was is _ABSENT or now is _ABSENT or type(was) is not type(now) or was != now:
            found.append(f"{path}: {_short(was)} → {_short(now)}")
    if old.get("seed") != new["seed"]:
        found.append(f"seed: {old.get('seed')} → {new['seed']}")
    return (
        found
        + list(_parents(old.get("parents", {}), new["parents"]))
        + list(_source(old.get("source", {}), new["source"]))
    )


def one_line(differences: list[str], limit: int = 3) -> str:
    """The first differences, and how many more there are."""
    more = f" (and {len(differences) - limit} more)" if len(differences) > limit else ""
    return "; ".join(differences[:limit]) + more


def _parents(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name) or {}, new.get(name)
        if name not in new:
            yield f"input {name} is gone"
        elif now is None:
            continue
        elif not was:
            yield f"input {name} is new ({now['stage']}/{now['key'][:8]})"
        elif was["digest"] != now["digest"]:
            yield f"input {name} changed ({was['stage']}/{was['key'][:8]} → {now['stage']}/{now['key'][:8]})"


def _source(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield f"source {name} is new to it"
        elif name not in new:
            yield f"source {name} is no longer used"
        elif old[name] != new[name]:
            yield f"source {name} edited"


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, leaf) of nested settings; empty containers are leaves."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _flat(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for i, item in enumerate(value):
            yield from _flat(item, f"{path}[{i}]")
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "unset"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"
