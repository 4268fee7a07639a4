"""Tools from signatures, and the forms in which models call them."""

import functools
import json
import threading
import time
from collections.abc import Callable
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from toolbox import add

from components.environments.tool_loop import ToolError
from components.environments.tools.formats import MAX_CALL, Call, Hermes, Llama, Malformed, Tags, named
from components.environments.tools.schema import Tool


def test_the_schema_is_the_one_that_transformers_makes_of_the_same_function():
    from transformers.utils import get_json_schema

    def weather(city: str, days: int) -> str:
        """Forecast.

        Args:
            city: where.
            days: how many.
        """
        return city * days

    theirs, ours = get_json_schema(weather)["function"], Tool.of(weather).schema["function"]
    theirs.pop("return", None)
    ours["parameters"].pop("additionalProperties")
    assert ours == theirs


def test_defaults_choices_and_descriptions_are_in_the_schema():
    tool = Tool.of(add)
    assert (tool.name, tool.description) == ("add", "Add two numbers.")
    assert tool.parameters["properties"] == {
        "a": {"type": "integer", "description": "the first, on two lines."},
        "b": {"type": "integer", "description": "the second.", "default": 1},
        "how": {"type": "string", "enum": ["plain", "loud"], "default": "plain"},
    }
    assert tool.parameters["required"] == ["a"]


def test_what_a_partial_sets_is_not_the_policys_to_set():
    tool = Tool.of(functools.partial(add, how="loud"))
    assert list(tool.parameters["properties"]) == ["a", "b"]
    with pytest.raises(ToolError, match="add: how: Extra inputs are not permitted"):
        tool.check({"a": 1, "how": "plain"})


def test_arguments_are_checked_and_numbers_may_be_text():
    tool = Tool.of(add)
    assert tool.check({"a": "3"}) == {"a": 3, "b": 1, "how": "plain"}
    for bad, message in (
        ({}, "add: a: Field required"),
        ({"a": "x"}, "add: a: Input should be a valid integer"),
        ({"a": 1, "how": "soft"}, "add: how: Input should be 'plain' or 'loud'"),
    ):
        with pytest.raises(ToolError, match=message):
            tool.check(bad)


def test_words_are_the_arguments_in_order_and_the_last_takes_the_rest():
    def put(key: str, value: str = "") -> None: ...
    def tell(text: str) -> None: ...
    def now() -> None: ...

    assert Tool.of(put).check("a b c ") == {"key": "a", "value": "b c"}
    assert Tool.of(tell).check(" a b c ") == {"text": "a b c"}
    assert Tool.of(now).check(" ") == {}
    with pytest.raises(ToolError, match="put: key: Field required"):
        Tool.of(put).check("")
    with pytest.raises(ToolError, match="Extra inputs"):
        Tool.of(now).check("please")


class Thing:
    def __call__(self, a: int) -> int:
        return a


def untyped(a) -> None: ...
def spread(*a: int) -> None: ...
def unknown(a: "Missing") -> None: ...  # noqa: F821
def threads(a: threading.Thread) -> None: ...
def calls(a: Callable) -> None: ...
def private(_a: int) -> None: ...
def misfit(a: int = "x") -> None: ...
def flag(a: int = True) -> None: ...
def nothing(a: str = None) -> None: ...  # noqa: RUF013
async def waits(a: int) -> None: ...
def yields(a: int):
    yield a


async def streams(a: int):
    yield a


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "untyped: parameter 'a' has no type. Fix: annotate it"),
        (spread, "spread: parameter 'a' .* cannot be passed by name. Fix: "),
        (unknown, "unknown: parameter 'a': the type 'Missing' cannot be read .*. Fix: import it"),
        (threads, "threads: parameter 'a': the type threading.Thread has no JSON schema. Fix: use str"),
        (calls, "calls: parameter 'a': the type .*Callable has no JSON schema. Fix: use str"),
        (private, "private: parameter '_a' begins with an underscore. Fix: rename it, e.g. a"),
        (misfit, "misfit: parameter 'a': the default 'x' is no int. Fix: "),
        (flag, "flag: parameter 'a': the default True is no int. Fix: "),
        (nothing, "nothing: parameter 'a': the default None is no str. Fix: .*None"),
        (waits, "waits: is an async function.*. Fix: "),
        (yields, "yields: is a generator.*. Fix: "),
        (streams, "streams: is an async function.*. Fix: "),
        (lambda a: a, "<lambda>: has no name.* Fix: "),
    ],
)
def test_functions_that_cannot_be_tools_are_named_with_what_to_do(function, message):
    with pytest.raises(ValueError, match=f"^tool test_tools.{message}[^\n]*$") as caught:
        Tool.of(function)
    assert "pydantic.dev" not in str(caught.value)


def test_objects_that_are_no_functions_are_named_by_their_class():
    for thing, kind in ((Thing(), "test_tools.Thing"), (5, "builtins.int")):
        with pytest.raises(ValueError, match=f"an object of {kind} is no function. Fix: "):
            Tool.of(thing)


def test_only_parameters_need_types_that_can_be_read():
    def look(key: str) -> "Elsewhere":  # noqa: F821
        ...

    assert list(Tool.of(look).parameters["properties"]) == ["key"]


def test_parameters_may_have_the_names_of_pydantics_own_attributes(recwarn):
    def put(schema: str, copy: int, json: str, model_config: str, model_fields: str = "f") -> None: ...

    tool = Tool.of(put)
    names = ["schema", "copy", "json", "model_config", "model_fields"]
    assert list(tool.parameters["properties"]) == names and tool.parameters["required"] == names[:4]
    given = {"schema": "a", "copy": 1, "json": "c", "model_config": "d"}
    assert tool.check(given) == {**given, "model_fields": "f"}
    assert tool.check("a 1 c d e f") == {**given, "model_fields": "e f"}
    with pytest.raises(ToolError, match="put: copy: Input should be a valid integer"):
        tool.check({**given, "copy": "x"})
    assert not recwarn.list


def test_true_is_no_integer_and_all_else_is_taken_as_before():
    def put(
        a: int = 1,
        b: list[int] | None = None,
        c: Annotated[int, Field(ge=2)] = 2,
        d: dict[str, tuple[int, str]] = {},  # noqa: B006
        e: int | str = 0,
        f: int | float = 0,
        g: bool = False,
        h: int | bool = 0,
    ) -> None: ...

    tool = Tool.of(put)
    for name, value in (("a", True), ("b", [1, False]), ("c", True), ("d", {"k": [True, "x"]})):
        with pytest.raises(ToolError, match=f"put: {name}.*: Input should be a valid integer$"):
            tool.check({name: value})
    with pytest.raises(ToolError, match="put: c: Input should be greater than or equal to 2"):
        tool.check({"c": 1})
    assert tool.parameters["properties"]["c"] == {"type": "integer", "minimum": 2, "default": 2}
    kept = {"a": 3, "b": [3], "c": 3, "d": {"k": (3, "x")}, "e": "3", "f": 3.0, "g": True, "h": True}
    given = {**kept, "a": "3", "b": ["3"], "d": {"k": ["3", "x"]}}
    got = tool.check(given)
    assert got == kept and {k: type(v) for k, v in got.items()} == {k: type(v) for k, v in kept.items()}
    got = tool.check({"e": 3, "f": 3, "h": 1, "g": "yes"})
    assert [type(got[name]) for name in "efhg"] == [int, int, int, bool]


CALLS = [Call("look", {"key": "a b", "deep": {"x": [1, None, "</tool_call"]}}), Call("add", {"a": 1})]


@pytest.mark.parametrize("name", ["hermes", "llama"])
def test_what_a_format_writes_it_reads(name):
    form = named(name)
    assert form.calls(form.write(CALLS)) == CALLS
    assert form.calls("<think>" + form.write(CALLS[:1]) + "</think>" + form.write(CALLS)) == CALLS
    assert form.calls("Nothing to do {here}.") == []


def test_tags_are_read_as_they_are_written():
    form = Tags()
    assert form.write([Call("add", {"a": 1, "b": 2})]) == "<tool>add 1 2</tool>"
    assert form.calls("so <tool>add 1 2</tool>") == [Call("add", "1 2")]
    assert form.calls("<tool>now</tool>") == [Call("now", "")]
    for bad in ("add 1</tool>", "<tool></tool>", f"<tool>{'a ' * MAX_CALL}</tool>"):
        assert isinstance(form.calls(bad)[0], Malformed)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{", "not JSON"),
        ('{"name": "a", "name": "b"}', "a key stands twice"),
        ('{"name": "a", "arguments": {"x": NaN}}', "NaN is not JSON"),
        ('{"arguments": {}}', 'with a "name"'),
        ("[1]", 'with a "name"'),
        ('{"name": "a", "arguments": [1]}', "must be a JSON object"),
        ('{"name": "a", "arguments": "{"}', "a text that is not JSON"),
        ('{"name": "a", "arguments": {"x": ' + "[" * 5000 + "]" * 5000 + "}}", "not JSON"),
        ('{"name": "a", "arguments": {"x": "' + "y" * MAX_CALL + '"}}', "more than 20000 characters"),
        ('{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}", "not JSON"),
    ],
    ids=range(10),
)
def test_what_is_no_call_says_why(body, reason):
    (found,) = Hermes().calls(f"<tool_call>{body}</tool_call>")
    assert isinstance(found, Malformed)
    assert reason in found.reason


def test_arguments_in_quotes_and_parameters_are_taken():
    assert Hermes().calls('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>') == [Call("a", {"x": 1})]
    assert Llama().calls('<|python_tag|>{"name": "a", "parameters": {"x": 1}}<|eom_id|>') == [Call("a", {"x": 1})]


def test_a_call_left_open_is_malformed_and_the_ones_before_it_stand():
    found = Hermes().calls(Hermes().write(CALLS) + '<tool_call>{"name"')
    assert found[:2] == CALLS
    assert found[2:] == [Malformed("a <tool_call> without its </tool_call>")]
    assert isinstance(Llama().calls('{"name": "a"')[0], Malformed)


@given(st.text(alphabet=st.sampled_from(list('<>/tol_ca{}":,name \n|\\')), max_size=80))
def test_no_text_breaks_a_format(text):
    for form in (Hermes(), Llama(), Tags()):
        assert all(isinstance(call, Call | Malformed) for call in form.calls(text))


@pytest.mark.parametrize("piece", ["<tool_call>", "<tool_call>{}</tool_call>", "{", '{"name":', "<|", "</think>"])
def test_reading_takes_time_in_proportion_to_the_text(piece):
    def took(size):
        text = piece * (size // len(piece))
        began = time.process_time()
        for form in (Hermes(), Tags(), Llama()):
            form.calls(text)
        return time.process_time() - began

    took(1000)
    assert took(1_000_000) < 200 * max(took(20_000), 0.01)


def test_manuals_name_every_tool():
    schemas = [Tool.of(add).schema]
    for name in ("hermes", "llama"):
        assert json.dumps(schemas[0]["function"]["name"]) in named(name).manual(schemas)
    assert Tags().manual(schemas) == "Tools: add a b how. Call one with <tool>name arguments</tool>."
    with pytest.raises(ValueError, match="no such tool-call format 'xml'"):
        named("xml")
