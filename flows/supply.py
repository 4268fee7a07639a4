"""What settings and data must agree on: prompts that fit the model, answers that someone can judge, golds that hold.

Everything here is asked before a model is loaded, and only where it can be said for certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.annotations import CONTENT
from flows.build import build
from flows.errors import Problem
from flows.modules import literal
from flows.stage import StageSpec

_ACCURACY, _CODE = "components.rewards.accuracy.Accuracy", "components.rewards.code.Code"
_BY_STATE = {
    "components.rewards.agent.Completion",
    "components.rewards.agent.Success",
}  # they judge what is left at the end
_FIXES = {
    "code": ", as reward=code does",
    "state": ", or judge the episode's end: reward=agent, and components.rewards.agent.Success as accuracy",
}
_PROGRAMS = "components.data.programs.Programs"
TINY = "components.models.tiny.Tiny"
_MAX_CHARS = 20_000  # of a prompt, where the cleaning does not say
_HEADERS = 64  # tokens that a template puts around a prompt, more than any usual one
_SANDBOX = "install bubblewrap, or see Programs as answers in the README"
_GOLDS = 200  # programs that are run before each run; `r1flow data check` runs all of them
Contents = Mapping[str, int]


def verifier_problems(specs: Sequence[StageSpec], held: Mapping[str, Mapping[str, Contents]]) -> Iterator[Problem]:
    """Tasks whose answers no verifier of a stage knows how to judge: they could never score."""
    built_in = literal("components.rewards.accuracy", "VERIFIERS") or ()
    lacking: dict[tuple[str, int], list[str]] = {}
    for spec in specs:
        found = list(nodes(spec.settings))
        judges = [node for node in found if node["_target_"] == _ACCURACY]
        by_state = {"state"} if any(node["_target_"] in _BY_STATE for node in found) else set()
        known = {*built_in, *by_state, "open", *(name for node in judges for name in (node.get("verifiers") or {}))}
        for contents in held.get(spec.inputs.get("data", ""), {}).values() if judges else ():
            for name, n in contents.items():
                kind, _, verifier = name.partition("/")
                if kind == "verifier" and verifier not in known:
                    lacking.setdefault((verifier, n), []).append(spec.name)
    for (verifier, n), stages in lacking.items():
        where = at_stages(stages)
        fix = f"name it in verifiers of these stages' Accuracy{_FIXES.get(verifier, '')}"
        yield Problem(where, "accuracy", f"no verifier {verifier!r}, so {n} tasks of the data can never score", fix=fix)


def at_stages(stages: Sequence[str]) -> str:
    """Where a problem of several stages is."""
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"


def prompt_problems(
    specs: Sequence[StageSpec], held: Mapping[str, Mapping[str, Contents]], allow: Sequence[str]
) -> Iterator[Problem]:
    """Prompts longer than the model's context less ``max_new_tokens``, counted."""
    by_name = {spec.name: spec for spec in specs}
    lengths: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for spec in specs:
        data, new = by_name.get(spec.inputs.get("data", "")), spec.settings.get("max_new_tokens")
        model = source_of(spec, by_name)
        context = None if model is None else _context(model)
        longest = max(
            (c.get("prompts/bytes", 0) for c in held.get(spec.inputs.get("data", ""), {}).values()), default=0
        )
        if data is None or model is None or context is None or not isinstance(new, int):
            continue
        if longest + _HEADERS <= context - new:  # a token is a byte at least
            continue
        key = (data.name, repr(model))
        if key not in lengths:
            lengths[key] = _lengths(data, model, allow)
        yield from _too_long(spec, data.name, *lengths[key], context=context, new=new)


def gold_problems(specs: Sequence[StageSpec], allow: Sequence[str]) -> Iterator[Problem]:
    """Programs that came with the data and fail their own tests, run in the sandbox of the run."""
    judges = [node for spec in specs for node in nodes(spec.settings) if node["_target_"] == _CODE]
    sources = [node for spec in specs for node in nodes(spec.settings.get("source")) if node["_target_"] == _PROGRAMS]
    for source in sources if judges else ():
        yield from failing_golds(build(_plain(source), allow=allow), judges[0], allow, limit=_GOLDS)


def failing_golds(source: Any, judge: Mapping[str, Any], allow: Sequence[str], limit: int | None) -> Iterator[Problem]:
    """Args: judge: the node of a `components.rewards.code.Code`. limit: programs that are run at most."""
    golds = source.golds()[:limit]
    if not golds:
        return
    code = build({**judge, "partial": False, "accept_forgeable": True}, allow=allow)
    try:
        with code.sandbox:
            for where, task, program in golds:
                try:
                    verdict = code.judge(task, f"```python\n{program}\n```")
                except ValueError as error:  # tests that are none
                    text = str(error).partition(" Fix: ")[0].removesuffix(".")
                    fix = "repair the row's tests, or drop it: see components.rewards.code_tests.read_tests"
                    yield Problem(f"{where} test", "", text, fix=fix)
                    continue
                if verdict.outcome not in ("pass", "infra"):
                    problem = f"fails the task's own tests ({verdict.detail or verdict.outcome})"
                    fix = "repair program or tests, or drop the row"
                    yield Problem(f"{where} canonical_solution", "", problem, fix=fix)
    except (RuntimeError, ValueError) as error:  # no sandbox that holds
        text = " ".join(str(error).split())
        yield Problem("data", "", f"its programs can't be run: {text.partition(' Fix: ')[0]}", fix=_SANDBOX)


def nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    """All component nodes in settings."""
    if isinstance(value, Mapping):
        if isinstance(value.get("_target_"), str):
            yield value
        for item in value.values():
            yield from nodes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nodes(item)


def source_of(spec: StageSpec, by_name: Mapping[str, StageSpec]) -> Mapping[str, Any] | None:
    """The node of the model that a stage's own was made from."""
    seen: set[str] = set()
    while (name := spec.inputs.get("model", "")) in by_name and name not in seen:
        seen.add(name)
        spec = by_name[name]
    found = spec.settings.get("model")
    return found if isinstance(found, Mapping) else None


def _context(model: Mapping[str, Any]) -> int | None:
    if model.get("_target_") == TINY:
        return int(model.get("max_position", 1024))
    folder = folder_of(model)
    if folder is None:
        return None
    from components.models.files import context_of  # of a model that is here

    return context_of(folder)


def folder_of(model: Mapping[str, Any]) -> Path | None:
    path = model.get("path")
    folder = Path(path).expanduser() if isinstance(path, str) and not model.get("package") else None
    return folder if folder is not None and folder.is_dir() else None


def _lengths(data: StageSpec, model: Mapping[str, Any], allow: Sequence[str]) -> tuple[list[int], list[int]]:
    """(tokens, characters) of every prompt that the cleaning keeps; without a tokenizer at hand its words, which are
    tokens at least."""
    longest = (data.settings.get("cleaning") or {}).get("max_prompt_chars", _MAX_CHARS)
    corpus = build(_plain(data.settings["source"]), allow=allow).load(0)
    texts = {
        task.prompt: "\n".join(message.content for message in task.messages)
        for tasks in corpus.tasks.values()
        for task in tasks
        if len(task.prompt) <= longest
    }
    folder = folder_of(model)
    file = None if folder is None else folder / "tokenizer.json"
    if file is not None and file.is_file():
        from tokenizers import Tokenizer  # light, and only where prompts may be too long

        encoded = Tokenizer.from_file(str(file)).encode_batch(list(texts.values()), add_special_tokens=False)
        return [len(ids) for ids in encoded], [len(prompt) for prompt in texts]
    return [len(text.split()) for text in texts.values()], [len(prompt) for prompt in texts]


def _too_long(
    spec: StageSpec, data: str, tokens: Sequence[int], chars: Sequence[int], *, context: int, new: int
) -> Iterator[Problem]:
    room = context - new
    over = [n for n in tokens if n > room]
    if not over:
        return
    fitting = min(c for n, c in zip(tokens, chars, strict=True) if n > room) - 1
    problem = (
        f"{len(over)} of {len(tokens)} prompts are longer than the model's context of {context} less it allows "
        f"({room} tokens), the longest {max(over)}"
    )
    drop = f"'{data}.cleaning={{_target_: components.data.cleaning.Cleaning, max_prompt_chars: {max(fitting, 0)}}}'"
    yield Problem(f"stage {spec.name}", "max_new_tokens", problem, got=new, fix=f"lower it, or drop them with {drop}")


def _plain(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != CONTENT}
