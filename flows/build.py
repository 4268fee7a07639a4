"""Configuration → stages in the order they can run, and node → object.

A *node* is a mapping with ``_target_``, the dotted path of a function or class; its other keys are keyword arguments,
nodes again or plain values. ``_partial_: true`` gives a ``functools.partial``; ``{_input_: name}`` the directory of an
input's artifact; ``{_env_: text}`` a text with environment variables filled in.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.runtime import StageArtifact
from flows.annotations import SPECIAL
from flows.errors import BadInput, Problem, did_you_mean
from flows.gate import MODES, gate_mode
from flows.patches import own_groups, patched
from flows.redact import reveal
from flows.stage import StageSpec

if TYPE_CHECKING:
    from flows.compose import Config

ALLOWED = ("components",)
ALLOW_VARIABLE = "R1FLOW_ALLOW"
_NAME = re.compile(r"^[A-Za-z0-9._-]{1,80}$")
_STAGE_KEYS = frozenset({"_target_", "gate", "inputs", "launcher", "retries", "seed"})


# --- stages ----------------------------------------------------------------------------------------------------------


def stage_specs(config: Config) -> list[StageSpec]:
    """The pipeline's stages, each after those it takes inputs from; otherwise in the order of the yaml file.

    Raises:
        BadInput: stages without target, inputs that no stage provides, cycles, patches for stages or keys that don't
            exist. Whether settings fit their component is `flows.preflight`'s part.
    """
    nodes = {name: node for name, node in (config.root.get("stages") or {}).items() if node is not None}
    where = f"pipeline {config.pipeline}"
    if not nodes:
        raise BadInput(Problem(where, "stages", "has no stages", fix="choose a pipeline: pipeline=r1"))
    patches = config.root.get("only") or {}
    problems = [
        Problem("configuration", f"only.{name}", "no such stage in this pipeline", fix=did_you_mean(name, nodes))
        for name in patches
        if name not in nodes
    ]
    specs: dict[str, StageSpec] = {}
    for name, node in nodes.items():
        if not _NAME.match(str(name)):
            fix = "use letters, digits, dot, dash and underscore, 80 at most"
            problems.append(Problem(where, f"stages.{name}", "is no stage name", fix=fix))
            continue
        try:
            specs[name] = _spec(config, name, node, patches.get(name) or {})
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(problems)
    return _ordered(where, specs)


def _spec(config: Config, name: str, node: Any, patch: Mapping[str, Any]) -> StageSpec:
    if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str):
        raise BadInput(
            Problem(
                f"stage {name}",
                "_target_",
                "is missing",
                fix="name the stage's function, e.g. components.stages.sft.sft",
            )
        )
    groups, rest = own_groups(config, name, node, patch)
    node = copy.deepcopy(dict(config.stage_with(name, groups) if groups else node))
    node.setdefault("launcher", copy.deepcopy(config.root.get("launcher") or {}))
    node.setdefault("retries", config.root.get("retries", 0))
    node.setdefault("gate", None)
    node.setdefault("inputs", {})
    node = patched(config, f"stage {name}", "", node, rest)
    launcher = node["launcher"]
    inputs = node["inputs"] or {}
    if isinstance(inputs, Mapping):  # null takes away an input that the stage's own file names
        inputs = {key: source for key, source in inputs.items() if source is not None}
    if not isinstance(inputs, Mapping) or not all(isinstance(source, str) for source in inputs.values()):
        raise BadInput(
            Problem(
                f"stage {name}",
                "inputs",
                "is not a mapping of input name to stage name",
                got=inputs,
                fix="write inputs: {policy: rl_1}",
            )
        )
    return StageSpec(
        name=name,
        target=node["_target_"],
        inputs=dict(inputs),
        settings={k: v for k, v in node.items() if k not in _STAGE_KEYS},
        seed=node.get("seed", config.root.get("seed", 0)),
        launcher=launcher or {},
        retries=_retries(name, node["retries"]),
        gate=_gate(name, node["gate"]),
    )


def _retries(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise BadInput(Problem(f"stage {name}", "retries", "expects a whole number, 0 or more", got=value, fix="set 2"))
    return value


def _gate(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        return gate_mode(value)
    except ValueError as error:
        fix = did_you_mean(str(value), MODES)
        raise BadInput(Problem(f"stage {name}", "gate", str(error), got=value, fix=fix)) from error


def _ordered(where: str, specs: Mapping[str, StageSpec]) -> list[StageSpec]:
    problems = [
        Problem(
            f"stage {spec.name}",
            f"inputs.{name}",
            "no such stage",
            got=source,
            fix=did_you_mean(source, set(specs) - {spec.name}),
        )
        for spec in specs.values()
        for name, source in spec.inputs.items()
        if source not in specs
    ]
    if problems:
        raise BadInput(problems)
    done: dict[str, StageSpec] = {}
    while len(done) < len(specs):
        ready = [s for s in specs.values() if s.name not in done and all(i in done for i in s.inputs.values())]
        if not ready:
            cycle = " → ".join(_cycle({n: s for n, s in specs.items() if n not in done}))
            raise BadInput(
                Problem(
                    where,
                    "stages",
                    f"inputs form a cycle, {cycle}",
                    fix="take one of these inputs from an earlier stage",
                )
            )
        done[ready[0].name] = ready[0]
    return list(done.values())


def _cycle(specs: Mapping[str, StageSpec]) -> Sequence[str]:
    """Some cycle among stages each of which waits for another one of them, in the direction data would flow."""
    path = [next(iter(specs))]
    while path[-1] not in path[:-1]:
        path.append(next(source for source in specs[path[-1]].inputs.values() if source in specs))
    return path[path.index(path[-1]) :][::-1]


# --- objects ---------------------------------------------------------------------------------------------------------


def allowed_packages() -> tuple[str, ...]:
    """``components`` and what the run's ``allow`` lists, which workers learn through R1FLOW_ALLOW."""
    return (*ALLOWED, *os.environ.get(ALLOW_VARIABLE, "").split())


def is_allowed(target: str, allow: Sequence[str]) -> bool:
    """Whether a dotted path lies in one of the allowed packages (or is one of the allowed paths)."""
    return any(target == prefix or target.startswith(prefix + ".") for prefix in allow)


def locate(target: str, allow: Sequence[str]) -> Any:
    """Import what a dotted path names. Raises ValueError outside the allowed packages, ImportError, AttributeError."""
    if not is_allowed(target, allow):
        raise ValueError(
            f"_target_ {target} lies outside the allowed packages {', '.join(allow)}. Fix: add its package to allow"
        )
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def build(
    node: Any, inputs: Mapping[str, StageArtifact | Path] | None = None, *, allow: Sequence[str] | None = None
) -> Any:
    """The object a node describes; containers are rebuilt, other values returned as they are.

    Args:
        inputs: artifact, or its directory, of each input.
        allow: packages that targets may come from; by default `allowed_packages`.

    Raises:
        Whatever the component raises, with a note that names it.
    """
    allow = allowed_packages() if allow is None else allow
    if isinstance(node, list | tuple):
        return [build(item, inputs, allow=allow) for item in node]
    if not isinstance(node, Mapping):
        return node
    if "_input_" in node:
        source = (inputs or {})[node["_input_"]]
        return source.path if isinstance(source, StageArtifact) else Path(source)
    if "_env_" in node:
        return reveal(node["_env_"])
    arguments = {key: build(value, inputs, allow=allow) for key, value in node.items() if key not in SPECIAL}
    if "_target_" not in node:
        return arguments
    function = locate(node["_target_"], allow)
    if node.get("_partial_"):
        return functools.partial(function, **arguments)
    try:
        return function(**arguments)
    except Exception as error:
        error.add_note(f"while building {node['_target_']} from the configuration")
        raise
