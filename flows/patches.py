"""What holds for one stage alone: patches laid over its resolved node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flows.annotations import SPECIAL
from flows.errors import BadInput, Problem, did_you_mean, nearest
from flows.settings import DELETE, OPTION
from flows.signature import NoSuchTarget, read_signature

if TYPE_CHECKING:
    from flows.compose import Config


def own_groups(
    config: Config, name: str, node: Mapping[str, Any], patch: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Groups the stage refers to and the patch changes for it alone (``cold_start.model=…``), and the other patches.

    An option goes to every reference the stage makes to the group, whatever the setting is called. So does a key below
    a group that isn't also the name of a setting; else it is the setting's.
    """
    groups, rest = {}, {}
    for key, value in patch.items():
        below = value if isinstance(value, Mapping) else {OPTION: value} if isinstance(value, str) else {}
        refers = key in config.groups and key in config.references.get(name, ())
        # A setting of the group's name that takes its value from elsewhere is meant itself.
        is_own = refers and (
            key not in node or re.match(rf"\$\{{{key}[.}}]", str(config.raw["stages"][name].get(key))) is not None
        )
        if not is_own or not (OPTION in below or (below and key not in node)):
            rest[key] = value
            continue
        content = config.raw[key]
        if OPTION in below:
            if problem := config.groups.check(key, str(below[OPTION]), f"stage {name}", key):
                raise BadInput(problem)
            content = config.option(key, below[OPTION])
        changes = {k: v for k, v in below.items() if k != OPTION}
        if key in node:
            rest |= {key: changes} if changes else {}
        else:
            content = patched(config, f"stage {name}", key, content, changes)
        groups[key] = content
    return groups, rest


def patched(config: Config, where: str, path: str, node: Any, patch: Any) -> Any:
    """``patch`` laid over ``node``: mappings merge key by key, anything else replaces.

    A patch with ``_target_`` and settings is another component: nothing of the old one's settings stays.
    """
    if not isinstance(patch, Mapping):
        group = path.rpartition(".")[2]
        if isinstance(patch, str) and group in config.groups and isinstance(node, Mapping | None):
            return _option(config, where, path, group, patch)
        return patch
    if not patch and path and not (isinstance(node, Mapping) and "_target_" in node):
        return {}  # a plain mapping that is written out as empty; merging would change nothing
    if OPTION in patch:
        group, option = path.rpartition(".")[2], patch[OPTION]
        is_option = isinstance(node, Mapping | None) or option in config.groups.options[group]
        node = _option(config, where, path, group, option) if is_option else option
        patch = {k: v for k, v in patch.items() if k != OPTION}
    if not patch:
        return node
    is_whole = path and "_target_" in patch and len(patch) > 1
    if not isinstance(node, Mapping) or is_whole or any(key in patch for key in ("_input_", "_env_")):
        node = {}
    result = dict(node)
    for key, value in patch.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and DELETE in value:
            if key not in result:
                raise BadInput(Problem(where, inner, "can't be deleted, it isn't there", fix=did_you_mean(key, result)))
            del result[key]
            continue
        if key not in result and (problem := _unknown(where, path, key, node)):
            raise BadInput(problem)
        result[key] = patched(config, where, inner, result.get(key), value)
    return result


def _unknown(where: str, path: str, key: str, node: Mapping[str, Any]) -> Problem | None:
    """Why ``key`` can't be set in ``node``, which doesn't have it yet; None if its component accepts it."""
    allowed = {k for k in node if not k.startswith("_")}
    inner = f"{path}.{key}" if path else key
    if "_target_" in node:
        try:
            signature = read_signature(node["_target_"])
        except NoSuchTarget:
            return None  # preflight reports the target itself
        allowed |= set(signature.parameters) - ({"inputs", "out"} if not path else set())
        allowed |= {"seed"} if not path else set()
        if signature.open or key in allowed or key in SPECIAL:
            return None
    elif nearest(key, node) is None:
        return None  # a further input, quota, term may have any name, but not one that looks misspelt
    return Problem(where, inner, f"no such setting {key!r}", fix=did_you_mean(key, allowed, f"{path}." if path else ""))


def _option(config: Config, where: str, path: str, group: str, option: str) -> Any:
    if problem := config.groups.check(group, str(option), where, path):
        raise BadInput(problem)
    return config.resolved(group, config.option(group, option))
