"""How models write tool calls: found in the policy's text in linear time, and written for experts and prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

MAX_CALL = 20_000  # characters of one call

FormatName = Literal["hermes", "llama", "tags"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the policy wrote it; nothing of it is checked but its form. A text stands for all arguments."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Malformed:
    """What was meant as a call and is none; ``reason`` is shown to the policy."""

    reason: str


class Format(Protocol):
    """A way to write calls.

    Attributes:
        chat: calls stand in a turn of their own, results in a tool's turn; else both stand inside the policy's text.
        stop, wrapper: of an environment (`protocol.Environment`) that is not ``chat``.
    """

    chat: bool
    stop: tuple[str, ...]
    wrapper: tuple[str, str]

    def calls(self, text: str) -> list[Call | Malformed]:
        """Calls in what the policy wrote since the last results; none means that it is done."""
        ...

    def write(self, calls: Sequence[Call]) -> str:
        """The text that makes these calls."""
        ...

    def manual(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        """Instructions for a system message, where the chat template has no place for schemas."""
        ...


class Hermes:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in one turn (Hermes, Qwen)."""

    chat = True
    stop: tuple[str, ...] = ()
    wrapper = ("", "")

    def calls(self, text: str) -> list[Call | Malformed]:
        """A call in the thinking is none."""
        text = _after_thinking(text)
        found: list[Call | Malformed] = []
        at = 0
        while (begin := text.find("<tool_call>", at)) >= 0:
            begin += len("<tool_call>")
            end = text.find("</tool_call>", begin)
            if end < 0:
                return [*found, Malformed("a <tool_call> without its </tool_call>")]
            found.append(_call(text[begin:end]))
            at = end + len("</tool_call>")
        return found

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(f"<tool_call>\n{_json(call, 'arguments')}\n</tool_call>" for call in calls)

    def manual(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        listed = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
        example = '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{listed}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            f"<tool_call></tool_call> XML tags:\n{example}"
        )


class Llama:
    """A turn that is nothing but JSON ``{"name": …, "parameters": {…}}``, several one after the other (Llama 3)."""

    chat = True
    stop: tuple[str, ...] = ()
    wrapper = ("", "")

    def calls(self, text: str) -> list[Call | Malformed]:
        text = _after_thinking(text).strip()
        while text.endswith("|>") and (begin := text.rfind("<|")) >= 0:  # end of turn
            text = text[:begin].rstrip()
        meant = text.startswith("<|python_tag|>")
        text = text.removeprefix("<|python_tag|>").lstrip()
        if not text.startswith("{") and not meant:
            return []
        found: list[Call | Malformed] = []
        decoder = json.JSONDecoder(object_pairs_hook=_without_twins, parse_constant=_refused)
        while text:
            try:
                value, end = decoder.raw_decode(text[:MAX_CALL])
            except (ValueError, RecursionError) as error:
                return [*found, Malformed(f"not JSON: {_brief(error)}")]
            found.append(_checked(value))
            text = text[end:].lstrip(" \t\r\n;,")
        return found

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(_json(call, "parameters") for call in calls)

    def manual(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        listed = "\n\n".join(json.dumps(schema, ensure_ascii=False, indent=4) for schema in schemas)
        return (
            "Given the following functions, please respond with a JSON for a function call with its proper arguments "
            "that best answers the given prompt.\n\nRespond in the format "
            '{"name": function name, "parameters": dictionary of argument name and its value}. Do not use variables.'
            f"\n\n{listed}"
        )


class Tags:
    """``<tool>name argument …</tool>`` inside the text, answered by ``<result>…</result>``: for tiny models."""

    chat = False

    def __init__(
        self, call: tuple[str, str] = ("<tool>", "</tool>"), wrapper: tuple[str, str] = ("<result>", "</result>")
    ) -> None:
        self.call, self.wrapper = (call[0], call[1]), (wrapper[0], wrapper[1])
        self.stop = (call[1],)

    def calls(self, text: str) -> list[Call | Malformed]:
        body, closed = text.rpartition(self.call[1])[:2]
        _, opened, inner = body.rpartition(self.call[0])
        name, _, arguments = inner.strip().partition(" ")
        if not (closed and opened):
            return [Malformed(f"a {self.call[1]} without its {self.call[0]}")]
        return [Call(name, arguments)] if name and len(inner) <= MAX_CALL else [Malformed("no tool is named")]

    def write(self, calls: Sequence[Call]) -> str:
        return "".join(f"{self.call[0]}{call.name} {self._words(call)}".rstrip() + self.call[1] for call in calls)

    def manual(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        names = [
            " ".join([schema["function"]["name"], *schema["function"]["parameters"].get("properties", {})])
            for schema in schemas
        ]
        return f"Tools: {'; '.join(names)}. Call one with {self.call[0]}name arguments{self.call[1]}."

    @staticmethod
    def _words(call: Call) -> str:
        return call.arguments if isinstance(call.arguments, str) else " ".join(map(str, call.arguments.values()))


def named(name: FormatName) -> Format:
    """The format of this name. Raises ValueError."""
    known: dict[str, type] = {"hermes": Hermes, "llama": Llama, "tags": Tags}
    if name not in known:
        raise ValueError(f"format: no such tool-call format {name!r}. Fix: one of {', '.join(known)}")
    return known[name]()


def _after_thinking(text: str) -> str:
    return text[end + len("</think>") :] if (end := text.rfind("</think>")) >= 0 else text


def _call(body: str) -> Call | Malformed:
    if len(body) > MAX_CALL:
        return Malformed(f"a call of more than {MAX_CALL} characters")
    try:
        value = json.loads(body, object_pairs_hook=_without_twins, parse_constant=_refused)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; nested a thousand deep
        return Malformed(f"not JSON: {_brief(error)}")
    return _checked(value)


def _checked(value: Any) -> Call | Malformed:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Malformed('a call is a JSON object with a "name" and "arguments"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models quote them
        try:
            arguments = json.loads(arguments, object_pairs_hook=_without_twins, parse_constant=_refused)
        except (ValueError, RecursionError):
            return Malformed('"arguments" is a text that is not JSON')
    if not isinstance(arguments, dict):
        return Malformed('"arguments" must be a JSON object')
    return Call(value["name"], arguments)


def _json(call: Call, key: str) -> str:
    return json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)


def _brief(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:100]


def _without_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
