"""What tasks of an agent and its environment must agree on: the tools that are offered, and how calls are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.build import build
from flows.errors import Problem, parted
from flows.stage import StageSpec
from flows.supply import Contents, at_stages

_TOOLS = "components.environments.agent.ToolEnvironment"
_NONE = "components.environments.single_turn.SingleTurn"
_USUAL = "environment=agent_tags, or one that has it"
_WITH_SHELL = "environment=agent_tags_shell, which has a shell beside the other tools"


def tool_problems(
    specs: Sequence[StageSpec], held: Mapping[str, Mapping[str, Contents]], allow: Sequence[str]
) -> Iterator[Problem]:
    """Tasks that offer tools which the environment of a stage lacks: they could never be solved; and traces that call
    tools otherwise than it reads them; and environments whose tools cannot be such. Environments that are elsewhere, or
    of another kind, are not asked."""
    asked = _Asked(allow)
    lacking: dict[tuple[str, int], list[str]] = {}
    unread: dict[tuple[str, int], list[str]] = {}
    for spec in specs:
        node = spec.settings.get("environment")
        if not isinstance(node, Mapping) or node.get("_target_") not in (_TOOLS, _NONE):
            continue
        if (known := asked.names(spec.name, node)) is None:
            continue
        for contents in held.get(spec.inputs.get("data", ""), {}).values():
            offered = {name.removeprefix("tool/"): n for name, n in contents.items() if name.startswith("tool/")}
            for name in offered.keys() - known:
                lacking.setdefault((name, offered[name]), []).append(spec.name)
            form, tagged = str(node.get("format", "tags")), contents.get("traces/tags", 0)
            if offered.keys() <= known and form != "tags" and tagged:
                unread.setdefault((form, tagged), []).append(spec.name)
    yield from asked.problems()
    fix = _WITH_SHELL if any("tool/shell" in c for contents in held.values() for c in contents.values()) else _USUAL
    for (name, n), stages in sorted(lacking.items()):
        text = f"no tool {name!r}, which {n} tasks of the data offer (meta.tools)"
        yield Problem(at_stages(stages), "environment", text, fix=fix)
    for (form, n), stages in sorted(unread.items()):
        text = f"{n} traces of the data call tools in tags, which this format of calls does not read"
        fix = "environment.format=tags, which any model can learn; or data without traces"
        yield Problem(at_stages(stages), "environment.format", text, got=form, fix=fix)


class _Asked:
    """What environments are asked for their tools, each once."""

    def __init__(self, allow: Sequence[str]) -> None:
        self._allow = allow
        self._known: dict[str, set[str] | str] = {}
        self._stages: dict[str, list[str]] = {}

    def names(self, stage: str, node: Mapping[str, Any]) -> set[str] | None:
        """Of an environment's tools; None: it cannot be built, see `problems`, or not before the run."""
        if node["_target_"] == _NONE:
            return set()
        key = repr(node)
        if "'_input_'" in key:
            return None
        if key not in self._known:
            try:
                built = build(dict(node), allow=self._allow)
                self._known[key] = {schema["function"]["name"] for schema in built.schemas()}
            except Exception as error:  # the tools are anyone's
                told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                self._known[key] = told.strip() or type(error).__name__
        found = self._known[key]
        if isinstance(found, str):
            self._stages.setdefault(found, []).append(stage)
            return None
        return found

    def problems(self) -> Iterator[Problem]:
        for told, stages in self._stages.items():
            text, fix = parted(told.splitlines()[0])
            yield Problem(at_stages(stages), "environment", text, fix=fix or "correct the tools it is built from")
