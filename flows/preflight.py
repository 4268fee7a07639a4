"""Everything that can be wrong with a run, found before anything runs and before any model is loaded.

Three kinds of check, in this order: every node fits its component's signature (names, required settings, types);
figures that can't be right whatever the component (a negative learning rate, a group of one); and what a component
says itself, by a function ``<name>_check(settings) -> list[str]`` next to it (for a stage also plain ``check``).
What it calls a warning is told and stops nothing. Such a function is pure; a stage's may take two more parameters, its
inputs and the number of its processes. It is run from its source alone if it uses nothing but built-ins, the standard
library and constants of its module, else the module is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.adapted import target_problems
from flows.annotations import SPECIAL
from flows.build import ALLOWED, is_allowed
from flows.checks import component_problems, figure_problems
from flows.errors import BadInput, Problem, did_you_mean, errors, short
from flows.gate import MODES, gate_mode
from flows.launch import make_launcher
from flows.objective import read_objective
from flows.place import newer_problems, store_problems
from flows.signature import NoSuchTarget, Signature, read_signature
from flows.stage import StageSpec
from flows.values import canonical, type_problem
from flows.wiring import wiring_problems

if TYPE_CHECKING:
    from flows.compose import Config

_STAGE_ARGUMENTS = ("inputs", "out")
ORCHESTRATORS = ("prefect", "inline")
CODE_CHOICES = ("check", "ignore")
_EXAMPLES = {"seed": "0", "artifacts": "artifacts", "allow": "[my_package]"}


def preflight(
    specs: Sequence[StageSpec],
    *,
    allow: Sequence[str] = (),
    artifacts: Path | None = None,
    to_read: bool = False,
    warn: Callable[[Problem], None] | None = None,
) -> list[StageSpec]:
    """The stages with their settings brought to their declared types (1 → 1.0), if nothing is wrong with them.

    Args:
        to_read: nothing is going to be written to ``artifacts``.
        warn: is told each warning.

    Raises: BadInput with everything that is wrong; the same problem in several stages is told once.
    """
    allowed = (*ALLOWED, *allow)
    problems = []
    if artifacts is not None:
        problems = [*store_problems(artifacts, to_read=to_read)] or [*newer_problems(artifacts, specs)]
    checked = []
    for spec in specs:
        found, settings = _stage(spec, allowed)
        problems += found
        checked.append(_with_settings(spec, settings))
    problems += wiring_problems(specs)
    problems += target_problems(specs, problems)
    if wrong := errors(problems):
        raise BadInput(_told_once(wrong))
    for problem in _told_once(problems):
        if warn is not None:
            warn(problem)
    return checked


def preflight_run(config: Config) -> None:
    """Check what concerns the run as a whole. Raises BadInput."""
    root, where = config.root, "configuration"
    problems = []
    for key, kind, text in (
        ("seed", int, "a whole number"),
        ("artifacts", str, "a directory"),
        ("allow", list, "a list of packages"),
    ):
        if type(root.get(key)) is not kind or root.get(key) == "":
            problems.append(
                Problem(where, key, f"expects {text}", got=root.get(key), fix=f"set {key}={_EXAMPLES[key]}")
            )
    wait = root.get("retry_wait_s", 0)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
        problems.append(
            Problem(where, "retry_wait_s", "expects a number of seconds, 0 or more", got=wait, fix="set retry_wait_s=2")
        )
    if (name := root.get("orchestrator")) not in ORCHESTRATORS:
        problems.append(
            Problem(where, "orchestrator", "no such orchestrator", got=name, fix=did_you_mean(str(name), ORCHESTRATORS))
        )
    problems += _cache_problems(root.get("cache"))
    try:
        read_objective(root.get("objective"))
    except BadInput as error:
        problems += error.problems
    try:
        gate_mode(root.get("gate", "warn"))
    except ValueError as error:
        fix = did_you_mean(str(root.get("gate")), MODES)
        problems.append(Problem(where, "gate", str(error), got=root.get("gate"), fix=fix))
    if problems:
        raise BadInput(problems)
    if isinstance(tracking := root.get("tracking"), Mapping) and tracking:
        problems = errors(check_node(where, "tracking", tracking, (*ALLOWED, *root["allow"]))[0])
    if problems:
        raise BadInput(problems)


def _cache_problems(cache: Any) -> Iterator[Problem]:
    if not isinstance(cache, Mapping | None):
        yield Problem("configuration", "cache", "is not a mapping", got=cache, fix="write cache.code=ignore")
        return
    for key, value in (cache or {}).items():
        if key != "code":
            fix = did_you_mean(str(key), ["code"], "cache.")
            yield Problem("configuration", f"cache.{key}", "no such setting", got=value, fix=fix)
        elif value not in CODE_CHOICES:
            fix = did_you_mean(str(value), CODE_CHOICES)
            yield Problem("configuration", "cache.code", "no such choice", got=value, fix=fix)


def check_node(
    where: str, key: str, node: Mapping[str, Any], allow: Sequence[str]
) -> tuple[list[Problem], dict[str, Any]]:
    """Problems of one component node and of all nodes in it, and the node with its values brought to their types."""
    target = node.get("_target_")
    if (problem := _target_problem(where, key, target, allow)) or not isinstance(target, str):
        return [problem] if problem else [], dict(node)
    try:
        signature = read_signature(target)
    except NoSuchTarget as error:
        return [Problem(where, _join(key, "_target_"), error.problem, fix=error.fix)], dict(node)
    problems, values = _settings(where, key, node, signature, allow, skip=(), partial=bool(node.get("_partial_")))
    if not errors(problems):
        figures = {**signature.defaults, **node}
        checked = {**signature.defaults, **values}
        problems += [*figure_problems(where, key, figures), *component_problems(where, key, target, checked, None)]
    return problems, {**{k: node[k] for k in SPECIAL if k in node}, **values}


def _stage(spec: StageSpec, allow: Sequence[str]) -> tuple[list[Problem], dict[str, Any]]:
    where, settings = f"stage {spec.name}", dict(spec.settings)
    if type(spec.seed) is not int:
        return [Problem(where, "seed", "expects a whole number", got=spec.seed, fix="write seed: 0")], settings
    if problem := _target_problem(where, "", spec.target, allow):
        return [problem], settings
    try:
        signature = read_signature(spec.target)
    except NoSuchTarget as error:
        return [Problem(where, "_target_", error.problem, fix=error.fix)], settings
    if tuple(signature.parameters)[:2] != _STAGE_ARGUMENTS:
        fix = "name a function (inputs, out, *, settings…) -> metrics"
        return [Problem(where, "_target_", "is not a stage function", got=spec.target, fix=fix)], settings
    problems, values = _settings(where, "", settings, signature, allow, skip=_STAGE_ARGUMENTS, partial=False)
    problems += _input_nodes(where, settings, spec.inputs)
    users = allow[len(ALLOWED) :]
    of_launcher = check_node(where, "launcher", spec.launcher, ("flows.launch", *users))[0]
    launcher = None
    if not errors(of_launcher):
        try:
            launcher = make_launcher(spec.launcher, users)
        except ValueError as error:  # "launcher.processes=2: … Fix: …"
            text, _, fix = str(error).partition(" Fix: ")
            of_launcher += [Problem(where, "", text.rstrip("."), fix=fix or "correct that setting of the launcher")]
    problems += of_launcher
    if not errors(problems):
        processes = getattr(launcher, "processes", 1)
        problems += [
            *figure_problems(where, "", {**signature.defaults, **settings}),
            *component_problems(where, "", spec.target, values, spec.inputs, processes),
        ]
    return problems, values


def _target_problem(where: str, key: str, target: Any, allow: Sequence[str]) -> Problem | None:
    if not isinstance(target, str):
        return Problem(
            where, _join(key, "_target_"), "is not a dotted path", got=target, fix="write package.module.function"
        )
    if not is_allowed(target, allow):
        package = target.split(".")[0]
        more = ",".join([*(name for name in allow if name not in ("flows.launch", *ALLOWED)), package])
        fix = f"add allow=[{more}] if you trust it"
        return Problem(where, _join(key, "_target_"), f"lies outside {', '.join(allow)}", got=target, fix=fix)
    return None


def _settings(
    where: str,
    key: str,
    node: Mapping[str, Any],
    signature: Signature,
    allow: Sequence[str],
    skip: Sequence[str],
    partial: bool,
) -> tuple[list[Problem], dict[str, Any]]:
    parameters = {name: p for name, p in signature.parameters.items() if name not in skip}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in node.items():
        if name in SPECIAL:
            continue
        inner = _join(key, name)
        if name not in parameters and not signature.open:
            fix = did_you_mean(name, parameters, f"{key}." if key else "")
            problems.append(Problem(where, inner, f"no such setting of {signature.target}", got=value, fix=fix))
            continue
        if value == "???":
            problems.append(Problem(where, inner, "must be given", fix=f"set {_assignment(where, inner)}"))
            continue
        below, value = _nested(where, inner, value, allow)
        problems += below
        if name in parameters and not errors(below):
            problem = type_problem(where, inner, parameters[name], value)
            problems += [problem] if problem else []
            value = value if problem else canonical(value, parameters[name].type)
        values[name] = value
    for name, parameter in parameters.items():
        if parameter.required and name not in node and not partial:
            fix = f"set {_assignment(where, _join(key, name))}, {parameter.text}"
            problems.append(Problem(where, _join(key, name), f"is required by {signature.target}", fix=fix))
    return problems, values


def _nested(where: str, key: str, value: Any, allow: Sequence[str]) -> tuple[list[Problem], Any]:
    if isinstance(value, Mapping) and "_target_" in value:
        return check_node(where, key, value, allow)
    if isinstance(value, Mapping):
        pairs = {k: _nested(where, _join(key, str(k)), v, allow) for k, v in value.items()}
        return [p for found, _ in pairs.values() for p in found], {k: v for k, (_, v) in pairs.items()}
    if isinstance(value, list | tuple):
        items = [_nested(where, _join(key, str(i)), v, allow) for i, v in enumerate(value)]
        return [p for found, _ in items for p in found], [v for _, v in items]
    return [], value


def _input_nodes(where: str, node: Any, inputs: Mapping[str, str], key: str = "") -> Iterator[Problem]:
    """``{_input_: name}`` must name an input of the stage."""
    if isinstance(node, Mapping):
        if "_input_" in node and node["_input_"] not in inputs:
            yield Problem(
                where,
                _join(key, "_input_"),
                "no such input",
                got=node["_input_"],
                fix=did_you_mean(str(node["_input_"]), inputs),
            )
        for name, value in node.items():
            yield from _input_nodes(where, value, inputs, _join(key, str(name)))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _input_nodes(where, value, inputs, _join(key, str(i)))


def _with_settings(spec: StageSpec, settings: Mapping[str, Any]) -> StageSpec:
    return dataclasses.replace(spec, settings=settings)


def _told_once(problems: Sequence[Problem]) -> list[Problem]:
    """The same problem at the same key in several stages comes from a shared node: one line for all of them."""
    merged: dict[tuple[str, str, str], list[Problem]] = {}
    for p in problems:
        merged.setdefault((p.key, p.problem, short(p.got)), []).append(p)
    result = []
    for same in merged.values():
        names = [p.where.removeprefix("stage ") for p in same]
        where = same[0].where if len(same) == 1 else f"stages {', '.join(dict.fromkeys(names))}"
        result.append(dataclasses.replace(same[0], where=where))
    return result


def _assignment(where: str, key: str) -> str:
    stage = where.removeprefix("stage ")
    return f"{stage}.{key}=…" if stage != where else f"{key}=…"


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
