"""What tasks of an agent and its environment must agree on: the tools that are offered, and how calls are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.build import build
from flows.errors import Problem
from flows.stage import StageSpec

_TOOLS = "components.environments.agent.ToolEnvironment"
_NONE = "components.environments.single_turn.SingleTurn"
_USUAL = "environment=agent_tags, or one that has it"
_WITH_SHELL = "environment=agent_tags_shell, which has a shell beside the other tools"
Contents = Mapping[str, int]


def tool_problems(
    specs: Sequence[StageSpec], held: Mapping[str, Mapping[str, Contents]], allow: Sequence[str]
) -> Iterator[Problem]:
    """Tasks that offer tools which the environment of a stage lacks: they could never be solved; and traces that call
    tools otherwise than it reads them. Environments that are elsewhere, or of another kind, are not asked."""
    lacking: dict[tuple[str, int], list[str]] = {}
    unread: dict[tuple[str, int], list[str]] = {}
    broken: dict[str, list[str]] = {}
    for spec in specs:
        node = spec.settings.get("environment")
        if not isinstance(node, Mapping) or node.get("_target_") not in (_TOOLS, _NONE):
            continue
        for contents in held.get(spec.inputs.get("data", ""), {}).values():
            offered = {name.removeprefix("tool/"): n for name, n in contents.items() if name.startswith("tool/")}
            try:
                known = _names(node, allow) if offered else set()
            except Exception as error:  # a user's own tool may raise anything
                broken.setdefault(f"{error}" or type(error).__name__, []).append(spec.name)
                continue
            for name in offered.keys() - known:
                lacking.setdefault((name, offered[name]), []).append(spec.name)
            form, tagged = str(node.get("format", "tags")), contents.get("traces/tags", 0)
            if offered.keys() <= known and form != "tags" and tagged:
                unread.setdefault((form, tagged), []).append(spec.name)
    fix = _WITH_SHELL if any("tool/shell" in c for contents in held.values() for c in contents.values()) else _USUAL
    for told, stages in broken.items():
        text, _, remedy = " ".join(told.split()).partition(" Fix: ")
        yield Problem(_where(stages), "environment", text.rstrip("."), fix=remedy.rstrip(".") or "correct its tools")
    for (name, n), stages in sorted(lacking.items()):
        text = f"no tool {name!r}, which {n} tasks of the data offer (meta.tools)"
        yield Problem(_where(stages), "environment", text, fix=fix)
    for (form, n), stages in sorted(unread.items()):
        text = f"{n} traces of the data call tools in tags, which this format of calls does not read"
        fix = "environment.format=tags, which any model can learn; or data without traces"
        yield Problem(_where(stages), "environment.format", text, got=form, fix=fix)


def _names(node: Mapping[str, Any], allow: Sequence[str]) -> set[str]:
    if node["_target_"] == _NONE:
        return set()
    return {schema["function"]["name"] for schema in build(dict(node), allow=allow).schemas()}


def _where(stages: Sequence[str]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"
