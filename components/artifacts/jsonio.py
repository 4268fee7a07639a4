"""JSON as the store needs it: one text per value (keys are hashes of it), JSON Lines, safe names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from components.artifacts.disk import naming_errors

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")


def check_name(name: str, what: str = "name") -> str:
    """Return ``name`` if it can safely be one path component, else raise ValueError.

    Allowed: 1 to 80 of ``A-Z a-z 0-9 . _ -``, not starting with a dot (so neither ``..`` nor a hidden file).
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{what} {name!r} is not usable as a directory name. "
            "Use 1 to 80 letters, digits, '.', '_' or '-', not starting with '.'"
        )
    return name


def canonical_json(value: Any, what: str = "value") -> str:
    """The one JSON text of a value: keys sorted, no spaces, ASCII, floats in Python's shortest round-trip form.

    Tuples are lists. ``1``, ``1.0`` and ``True`` stay different: a callee may treat them differently.

    Raises:
        ValueError: NaN, an infinity, or a key that is not a string; names where, starting with ``what``.
        TypeError: anything JSON has no form for; names where and the type.
    """
    _check_json(value, what)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _check_json(value: Any, where: str) -> None:
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value!r}, which JSON cannot hold. Give a finite number or null")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_json(item, f"{where}[{i}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(
                    f"{where} has the key {name!r} of type {type(name).__name__}. Quote it: JSON keys are strings"
                )
            _check_json(item, f"{where}.{name}")
    else:
        raise TypeError(
            f"{where} is a {type(value).__qualname__} ({str(value)[:60]!r}), not a JSON value. "
            "Use numbers, strings, true/false, null, lists and mappings"
        )


def plain_json(value: Any, where: str = "metrics") -> Any:
    """A JSON copy of what a stage measured: non-finite numbers become None, array scalars numbers, paths text.

    Unlike settings, a metric may honestly be NaN; it must not cost the stage that measured it.

    Raises: TypeError naming the entry that has no JSON form.
    """
    if isinstance(value, Mapping):
        return {str(name): plain_json(item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item") and getattr(value, "size", None) != 0:
        try:
            return plain_json(value.item(), where)
        except (ValueError, RuntimeError) as error:  # more than one element
            raise TypeError(
                f"{where} is an array ({type(value).__qualname__}): {error}. Return single numbers"
            ) from error
    raise TypeError(f"{where} is a {type(value).__qualname__}, not a JSON value")


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """All rows of a UTF-8 file with one JSON object per line.

    Raises: ValueError naming ``path:line`` and what is wrong; OSError if it cannot be read.
    """
    rows = []
    with open(path, encoding="utf-8", newline="\n") as file:  # only "\n" ends a line, U+2028 inside a text doesn't
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}. The file is cut off or was edited") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number}: one object per line expected, got {type(row).__name__}")
            rows.append(row)
    return rows


def write_jsonl(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as UTF-8, one JSON object per line; returns how many. Parent folders are made.

    Raises:
        ValueError, TypeError: a row JSON cannot hold (NaN, an object); names ``path:line``.
        OSError: the disk is full or broken; names the path and the bytes written so far.
    """
    path = Path(path)
    written = count = 0
    with naming_errors("write", path, lambda: written):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for count, row in enumerate(rows, start=1):
                try:
                    line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
                except (ValueError, TypeError) as error:
                    raise type(error)(f"{path}:{count}: {error}: {str(row)[:120]}") from error
                written += len(line)
                file.write(line)
    return count


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """One indented JSON value; see `plain_json` for what it takes. Raises OSError naming the path."""
    text = json.dumps(plain_json(value, path.name), indent=1, ensure_ascii=False) + "\n"
    with naming_errors("write", path, lambda: len(text)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
