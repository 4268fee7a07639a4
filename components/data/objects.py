"""One line of JSON as an object; whatever keeps it from being one is told with its place."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from components.data.corpus import Problems, shown

_DIGITS = 4300  # of a whole number that Python reads


def read_object(where: str, line: bytes, problems: Problems) -> dict[str, Any] | None:
    """The JSON object of one line; None if it is none, which is told with its place."""
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_each_key_once)
    except UnicodeDecodeError as error:
        problems.add(where, "line", f"not UTF-8 at byte {error.start} (got 0x{line[error.start]:02x})", "save as UTF-8")
    except json.JSONDecodeError as error:
        cut = "" if line.endswith(b"\n") else "; the last line looks truncated"
        problem = f"not JSON at column {error.colno}: {error.msg}{cut} (got {shown(line.decode()[:40].strip())})"
        problems.add(where, "line", problem, "one JSON object per line")
    except RecursionError:
        problems.add(where, "line", "is nested too deep to be read", "one flat object per line")
    except _NotANumber as error:
        problems.add(where, "line", f"the literal {error} isn't JSON (got {error})", "use a number, a string or null")
    except _KeyTwice as error:
        problems.add(where, str(error), "this key stands twice in one object", "keep one of them")
    except ValueError:  # after JSONDecodeError, which is one
        name = _longest_number(json.loads(line.decode("utf-8"), parse_int=str))
        problems.add(where, name, f"a whole number of more than {_DIGITS} digits", "shorten it, or write it as text")
    else:
        if isinstance(value, dict):
            return value if b"\\u" not in line or _is_text(where, value, problems) else None
        kind = "an array" if isinstance(value, list) else "a bare value"
        problems.add(
            where,
            "line",
            f"{kind} instead of an object (got {shown(value)})",
            "one object per line, no array around them",
        )
    return None


def repeated(names: Sequence[str]) -> list[str]:
    """Names that stand in a list twice, apart from the empty one."""
    return [name for name, n in Counter(names).items() if n > 1 and name]


class _NotANumber(ValueError):
    pass


class _KeyTwice(ValueError):
    pass


def _refuse_constant(name: str) -> None:
    raise _NotANumber(name)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _KeyTwice(next(iter(repeated([name for name, _ in pairs]))))
    return found


def _longest_number(row: Any) -> str:
    """The field that holds a number of too many digits, in a row whose numbers are still text."""
    if not isinstance(row, Mapping):
        return "line"
    return max(row, key=lambda name: max(map(len, re.findall(r"[0-9]+", json.dumps(row[name]))), default=0))


def _is_text(where: str, row: Mapping[str, Any], problems: Problems) -> bool:
    r"""False if ``\ud800`` without its other half stands in a field: no text holds that."""
    for name, value in row.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            found = f"\\u{ord(error.object[error.start]):04x}"
            problem = f"half of a surrogate pair, which is no character (got {found})"
            problems.add(where, shown(name).strip('"'), problem, "take it out, or write the whole pair")
            return False
    return True
