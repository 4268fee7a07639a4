"""Figures that can't be right in any component, and the checks that components bring along."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeGuard

from flows.errors import Problem, did_you_mean
from flows.modules import find_source, module_tree, top_names
from flows.signature import read_signature, split_target

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(("lr", "learning_rate", "epochs"), (lambda x: x > 0, "must be positive")),
    **dict.fromkeys(
        ("weight_decay", "beta", "kl", "kl_weight", "temperature", "top_k", "coefficient"),
        (lambda x: x >= 0, "must not be negative"),
    ),
    **dict.fromkeys(
        (
            *("steps", "prompts", "batch_size", "max_new_tokens", "samples", "minibatches", "workers", "threads"),
            *("max_batch", "micro_batch_tokens"),
        ),
        (lambda x: x >= 1, "must be at least 1"),
    ),
    "top_p": (lambda x: 0 < x <= 1, "must lie in (0, 1]"),
    "min_p": (lambda x: 0 <= x < 1, "must lie in [0, 1)"),
}
_GROUP = ("group", "group_size")
_WARNING = "warning: "


def figure_problems(where: str, key: str, node: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of the numbers in one node, nested plain mappings included (nested components are checked apart)."""
    for name, value in node.items():
        inner = f"{key}.{name}" if key else str(name)
        if isinstance(value, Mapping) and "_target_" not in value and name != "weights":
            yield from figure_problems(where, inner, value)
        elif (name == "weights" and "terms" not in node) or isinstance(value, list):  # a mix checks its own
            yield from _not_finite(where, inner, value)
        if not _is_number(value):
            continue
        if not math.isfinite(value):
            yield from _not_finite(where, inner, value)
        elif name in _RANGES and not _RANGES[name][0](value):
            yield Problem(where, inner, _RANGES[name][1], got=value, fix="write a value in that range")
        elif name in _GROUP and value < (1 if name == "group_size" and "algorithm" in node else 2):  # it checks itself
            fix = f"write {inner}=2 or more; 8 is usual"
            yield Problem(where, inner, "a group needs at least two rollouts to be compared", got=value, fix=fix)
    yield from _weights(where, key, node)
    yield from _batch(where, key, node)


def _not_finite(where: str, key: str, value: Any) -> Iterator[Problem]:
    """Numbers in lists and plain mappings that are none, or infinite."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _not_finite(where, f"{key}.{name}", item) if "_target_" not in value else ()
    elif isinstance(value, float) and not math.isfinite(value):
        problem = "is not a number" if math.isnan(value) else "is infinite"
        yield Problem(where, key, problem, got=value, fix="write a finite number")


def _weights(where: str, key: str, node: Mapping[str, Any]) -> Iterator[Problem]:
    weights, terms = node.get("weights"), node.get("terms")
    inner = f"{key}.weights" if key else "weights"
    if isinstance(weights, Mapping) and isinstance(terms, Mapping):
        for name in weights:
            if name not in terms:
                fix = did_you_mean(str(name), map(str, terms), f"{inner}.")
                yield Problem(where, f"{inner}.{name}", "there is no term of that name", got=weights[name], fix=fix)
    if isinstance(weights, list) and isinstance(terms, list) and len(weights) != len(terms):
        yield Problem(
            where, inner, f"{len(weights)} weights for {len(terms)} terms", got=weights, fix="give one weight for each"
        )
    named = weights.items() if isinstance(weights, Mapping) else enumerate(weights) if isinstance(weights, list) else ()
    numbers = [(name, value) for name, value in named if _is_number(value)]
    for name, value in numbers:
        if value < 0 and name not in (node.get("penalties") or ()):
            fix = "write 0 to switch the term off"
            fix += ", or name it in penalties if it measures something bad" if "penalties" in node else ""
            yield Problem(where, f"{inner}.{name}", "must not be negative", got=value, fix=fix)
    if numbers and all(value == 0 for _, value in numbers):
        yield Problem(where, inner, "sum to 0, nothing would be rewarded", got=weights, fix="make one of them positive")


def _batch(where: str, key: str, node: Mapping[str, Any]) -> Iterator[Problem]:
    prefix = f"{key}." if key else ""
    group = next((name for name in _GROUP if _is_number(node.get(name))), None)
    sampling = node.get("sampling")
    for place, owner in (("", node), ("sampling.", sampling)):
        cold = isinstance(owner, Mapping) and _is_number(owner.get("temperature")) and owner["temperature"] == 0
        if group and node[group] > 1 and cold:
            problem = f"all {node[group]} rollouts of a group would be the same"
            yield Problem(where, f"{prefix}{place}temperature", problem, got=0, fix="write 1.0")
    for whole, part in (("batch_size", group), ("prompts", "minibatches")):
        if (
            part
            and _is_number(node.get(whole))
            and _is_number(node.get(part))
            and node[part] > 0
            and node[whole] % node[part]
        ):
            problem = f"{node[whole]} is not a multiple of {part}={node[part]}"
            yield Problem(where, f"{prefix}{whole}", problem, fix=f"make {whole} a multiple of {node[part]}")


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- checks that components bring along ---------------------------------------------------------------------------


def component_problems(
    where: str,
    key: str,
    target: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str] | None,
    processes: int = 1,
) -> list[Problem]:
    """What the component's own check says of its settings; ``inputs`` and ``processes`` are given for stages.

    Components inside the settings have their defaults filled in, as far as these are written as plain values.
    A line ``"lr: too large. Fix: …"`` becomes the problem of key ``lr``; other lines concern the node as a whole. A
    text that begins with ``warning:`` does not keep the run from going on.
    """
    check = _check_function(target, is_stage=inputs is not None)
    if check is None:
        return []
    given = (with_defaults(settings), inputs or {}, processes, {})
    return _told(check(*given[: _positional(check)]), where, key)


def supply_problems(
    where: str,
    target: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    contents: Mapping[str, Mapping[str, int]],
) -> list[Problem]:
    """What a stage's own check says of what it is given: its fourth parameter, rows by file by input (or setting)."""
    check = _check_function(target, is_stage=True)
    if check is None or _positional(check) < 4:
        return []
    settings = {**read_signature(target).defaults, **settings}
    return _told(check(with_defaults(settings), inputs, 1, contents), where, "")


def _positional(check: Callable[..., list[str]]) -> int:
    return sum(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(check).parameters.values())


def _told(lines: list[str], where: str, key: str) -> list[Problem]:
    problems = []
    for line in lines:
        match = re.match(r"([A-Za-z_][\w.]*): (.*)", line, re.DOTALL)
        name, text = (match[1], match[2]) if match else ("", line)
        if name == "warning":
            name, text = "", line
        text, _, fix = text.partition(" Fix: ")
        warning, text = text.startswith(_WARNING), text.removeprefix(_WARNING)
        path = ".".join(part for part in (key, name) if part)
        problems.append(Problem(where, path, text.rstrip("."), fix=fix.rstrip("."), warning=warning))
    return problems


def with_defaults(value: Any) -> Any:
    """Settings with the defaults of the components inside them, as far as these are written as plain values."""
    if isinstance(value, list):
        return [with_defaults(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    given = {key: with_defaults(item) for key, item in value.items()}
    return {**read_signature(value["_target_"]).defaults, **given} if "_target_" in value else given


def _check_function(target: str, is_stage: bool) -> Callable[..., list[str]] | None:
    return own_function(target, "check") or (own_function(target, "check", alone=True) if is_stage else None)


@cache
def own_function(target: str, kind: str, alone: bool = False) -> Callable[..., list[str]] | None:
    """The function ``<name>_<kind>`` next to a component, with ``alone`` the one that is just called ``<kind>``."""
    module, name = split_target(target)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    found = kind if alone else f"{snake}_{kind}"
    if found not in top_names(module):
        return None
    light = _from_source(module, found)
    return light if light is not None else getattr(importlib.import_module(module), found)


def _from_source(module: str, function: str) -> Callable[..., list[str]] | None:
    """The function made from its source and what it uses of its module; None if that would import heavy packages."""
    tree, names = module_tree(module), top_names(module)
    if tree is None:
        return None
    needed: dict[str, ast.AST] = {}
    todo = [function]
    while todo:
        name = todo.pop()
        statement = names.get(name)
        if name in needed or (statement is None and hasattr(builtins, name)):
            continue
        if statement is None or not _is_light(statement):
            return None
        needed[name] = statement
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            todo += sorted(_global_names(statement))
    kept = [s for s in ast.walk(tree) if any(s is n for n in needed.values())]
    future = ast.parse("from __future__ import annotations").body
    body = sorted(kept, key=lambda s: s.lineno)  # type: ignore[attr-defined]
    namespace: dict[str, Any] = {"__name__": module}
    exec(compile(ast.Module([*future, *body], []), f"<check of {module}>", "exec"), namespace)  # type: ignore[list-item]
    return namespace[function]


def _is_light(statement: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
    match statement:
        case ast.FunctionDef() | ast.Assign() | ast.AnnAssign():
            return True
        case ast.Import(names=aliases):
            return all(_is_cheap_module(alias.name, seen) for alias in aliases)
        case ast.ImportFrom(module=str(module), level=0, names=aliases):
            submodules = [name for alias in aliases if find_source(name := f"{module}.{alias.name}") is not None]
            return all(_is_cheap_module(name, seen) for name in (module, *submodules))
    return False


def _is_cheap_module(module: str, seen: frozenset[str] = frozenset()) -> bool:
    """In the standard library, or one of ours that imports only such modules, from packages that import nothing."""
    package, _, _ = module.rpartition(".")
    if module.split(".")[0] in sys.stdlib_module_names or module in seen:
        return True
    if module.split(".")[0] != "components" or module_tree(module) is None:
        return False
    imports = [s for s in top_names(module).values() if isinstance(s, ast.Import | ast.ImportFrom)]
    return (not package or _is_cheap_module(package, seen)) and all(_is_light(s, seen | {module}) for s in imports)


def _global_names(statement: ast.AST) -> set[str]:
    """Names a statement reads from its module when run; annotations are never evaluated."""
    if not isinstance(statement, ast.FunctionDef):
        value = getattr(statement, "value", None)
        return {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} if value is not None else set()
    nodes = [
        n
        for part in (*statement.body, *statement.decorator_list, *statement.args.defaults, *statement.args.kw_defaults)
        if part
        for n in ast.walk(part)
    ]
    bound = {a.arg for a in ast.walk(statement) if isinstance(a, ast.arg)}
    bound |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {
        (a.asname or a.name).split(".")[0] for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names
    }
    bound |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ExceptHandler) and n.name}
    bound |= {n for m in nodes if isinstance(m, ast.MatchAs | ast.MatchStar) and (n := m.name)}
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - bound
