"""One text per value, errors that name the place, JSON Lines that survive any text."""

import enum
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.artifacts import canonical_json, plain_json, read_jsonl, write_jsonl

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def typed(value):
    """A value in which 1, 1.0 and True, and 0.0 and -0.0, differ."""
    if isinstance(value, dict):
        return ("dict", tuple(sorted((k, typed(v)) for k, v in value.items())))
    if isinstance(value, list | tuple):
        return ("list", tuple(typed(v) for v in value))
    return (type(value).__name__, repr(value))


@settings(max_examples=50, deadline=None)
@given(values)
def test_the_text_holds_the_value(value):
    assert typed(json.loads(canonical_json(value))) == typed(value)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), values), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(value, random):
    items = list(value.items())
    random.shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)


@settings(max_examples=50, deadline=None)
@given(values, values)
def test_different_values_have_different_texts(a, b):
    assert (canonical_json(a) == canonical_json(b)) == (typed(a) == typed(b))


def test_known_texts():
    assert canonical_json({"b": (1, 2.0, 1e-3, None), "a": {"é": True}}) == (
        '{"a":{"\\u00e9":true},"b":[1,2.0,0.001,null]}'
    )


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"lr": math.nan}, ValueError, r"rl_1\.lr is nan, which JSON cannot hold"),
        ({"a": [0, {"b": -math.inf}]}, ValueError, r"rl_1\.a\[1\]\.b is -inf"),
        ({"levels": {1: 2}}, ValueError, r"rl_1\.levels has the key 1 of type int.*Quote it"),
        ({"path": Path("x")}, TypeError, r"rl_1\.path is a PosixPath \('x'\), not a JSON value"),
        ({"s": {1}}, TypeError, r"rl_1\.s is a set"),
        ({"c": Colour.RED}, TypeError, r"rl_1\.c is a Colour"),
        ({"f": len}, TypeError, r"rl_1\.f is a builtin"),
    ],
)
def test_a_value_json_cannot_hold_is_named(value, error, message):
    with pytest.raises(error, match=message):
        canonical_json(value, "rl_1")


def test_metrics_take_array_scalars_and_paths_but_not_arrays():
    numpy = pytest.importorskip("numpy")
    measured = {"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.array([7]), "p": Path("x/y"), "t": (1, 2)}
    assert plain_json(measured) == {"a": 0.5, "b": 3, "c": 7, "p": "x/y", "t": [1, 2]}
    with pytest.raises(TypeError, match=r"metrics\.a is an array"):
        plain_json({"a": numpy.zeros(2)})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values, max_size=3), max_size=4))
def test_rows_come_back_as_they_were_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "deep" / "rows.jsonl"
    try:
        assert write_jsonl(path, rows) == len(rows)
    except UnicodeEncodeError:  # half a surrogate pair is not text
        return
    assert typed(read_jsonl(path)) == typed(rows)


def test_line_separators_inside_a_text_do_not_end_a_row(tmp_path: Path):
    rows = [{"text": "a\u2028b\x85c\r\nd"}, {"text": "e"}]
    write_jsonl(tmp_path / "x.jsonl", rows)
    assert read_jsonl(tmp_path / "x.jsonl") == rows
    assert (tmp_path / "x.jsonl").read_bytes().count(b"\n") == 2


def test_a_bad_row_is_named_by_line(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    with pytest.raises(ValueError, match=r"x\.jsonl:2: .*nan"):
        write_jsonl(path, [{"a": 1}, {"a": math.nan}])
    path.write_text('{"a": 1}\n{"a": ')
    with pytest.raises(ValueError, match=r"x\.jsonl:2: not JSON.*cut off"):
        read_jsonl(path)
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match=r"x\.jsonl:1: one object per line expected, got list"):
        read_jsonl(path)
