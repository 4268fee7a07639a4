"""Python values as strict JSON and back, types kept: data crosses a sandbox's border, objects never.

None, bool, int, float, str and list are JSON's own; a tuple is ``{"tuple": […]}``, likewise set, frozenset, dict (as
pairs), bytes (hex), complex and integers beyond 64 bits (hex: no quadratic parsing). NaN and infinities are refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}
_MAX_DEPTH = 100
_ALIKE = 100


class NotData(ValueError):
    """A value, or a text, that has no place in the encoding."""


def dumps(value: Any) -> str:
    """One line of ASCII. Raises NotData."""
    return json.dumps(encode(value), allow_nan=False)


def loads(text: bytes | str) -> Any:
    """The value of `dumps`. Raises NotData: anything that `dumps` would not have written."""
    try:
        return decode(json.loads(text, parse_constant=_refuse, object_pairs_hook=_single))
    except (ValueError, RecursionError) as error:
        raise NotData(str(error)) from None


def encode(value: Any, depth: int = 0) -> Any:
    """JSON-able form of a value; objects of a subclass are written as the built-in type. Raises NotData."""
    if depth > _MAX_DEPTH:
        raise NotData(f"nested more than {_MAX_DEPTH} deep")
    match value:
        case None | bool():
            return value
        case int():
            number = int(value)
            return number if -(1 << 63) <= number < 1 << 63 else {"int": hex(number)}
        case float():
            if not math.isfinite(value):
                raise NotData(f"{float(value)} is not a finite number")
            return float(value)
        case complex():
            return {"complex": [encode(value.real), encode(value.imag)]}
        case str():
            return str.__str__(value)
        case bytes() | bytearray():
            return {"bytes": bytes(value).hex()}
        case list():
            return [encode(item, depth + 1) for item in value]
        case dict():
            return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [encode(item, depth + 1) for item in value]}
    raise NotData(f"a {type(value).__name__} is not data")


def decode(value: Any, depth: int = 0) -> Any:
    """Inverse of `encode`. Raises NotData."""
    if depth > _MAX_DEPTH:
        raise NotData(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, list):
        return [decode(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        if isinstance(value, float) and not math.isfinite(value):  # 1e999 is JSON
            raise NotData("not a finite number")
        return value
    if len(value) != 1:
        raise NotData("an object of other than one key")
    ((tag, body),) = value.items()
    try:
        return _decode_tagged(tag, body, depth + 1)
    except (TypeError, ValueError) as error:  # unhashable members, bad hex, wrong shapes
        raise NotData(f"{tag}: {error}") from None


def _decode_tagged(tag: str, body: Any, depth: int) -> Any:
    if tag == "int" and isinstance(body, str) and body.lstrip("-").startswith("0x"):
        return int(body, 16)
    if tag == "bytes" and isinstance(body, str):
        return bytes.fromhex(body)
    if isinstance(body, list):
        if tag == "tuple":
            return tuple(decode(item, depth) for item in body)
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](_hashed([decode(item, depth) for item in body]))
        if tag == "dict":
            keys = _hashed([decode(k, depth) for k, _ in body])
            return dict(zip(keys, (decode(v, depth) for _, v in body), strict=True))
        if tag == "complex" and len(body) == 2 and all(isinstance(part, float) for part in body):
            return complex(*body)
    raise NotData(f"{tag!r} is no type of this encoding")


def _hashed(members: list[Any]) -> list[Any]:
    """The members of a set or keys of a dict, unless so many hash alike that building it takes quadratic time."""
    if len(members) > _ALIKE and max(Counter(map(hash, members)).values()) > _ALIKE:
        raise NotData(f"more than {_ALIKE} members hash alike")
    return members


def _refuse(constant: str) -> Any:
    raise NotData(f"{constant} is not a finite number")


def _single(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) != 1:
        raise NotData("an object of other than one key")
    return dict(pairs)
