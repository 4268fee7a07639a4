"""Which runs a sweep's command line means: the product of all values that are listed."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.compose import compose
from flows.errors import BadInput, Problem
from flows.redact import redact
from flows.settings import COMMAND_LINE, Groups, config_roots, parse

RESERVED = ("launcher", "search")  # keys of the node ``sweep`` that are settings of the sweep and not swept
_ONE_FOR_ALL = ("artifacts", "objective")  # what a sweep has one of
_SHOWN = 4  # repetitions that are named
_VALUES = "write {key}=VALUE, or several: {key}=1,2,3"
_LIST_THEM = "list them: {key}=a,b,c or {key}=range(0,3); only a search draws from an interval (sweep.search)"


@dataclass(frozen=True)
class Request:
    """What the command line and the configuration ask for.

    Attributes:
        fixed: overrides of every run.
        swept: key → override text with several values, in the order given.
        launcher, search: nodes of the configuration's ``sweep``; None where it has none.
        allow: packages of the user that ``_target_`` may name.
    """

    fixed: Sequence[str]
    swept: Mapping[str, str]
    launcher: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None
    allow: Sequence[str] = field(default_factory=tuple)


def read_request(overrides: Sequence[str], config_dir: Path | None = None) -> Request:
    """Read what is swept: the command line's values, and those listed under ``sweep`` that it leaves alone.

    Raises: BadInput if ``sweep`` is no mapping, an override has no value, or something is swept that arms must share.
    """
    parsed = parse(overrides)
    if empty := [o.key for o in parsed if o.value is not None and not o.value.strip()]:
        raise BadInput([Problem(COMMAND_LINE, f"{key}=", "has no value", fix=_VALUES.format(key=key)) for key in empty])
    given = [o.text for o in parsed if not o.is_sweep]
    root = compose(given, config_dir).root
    node = root.get("sweep") or {}
    if not isinstance(node, Mapping):
        raise BadInput(Problem("configuration", "sweep", "is not a mapping", got=node, fix="write key: values"))
    parts = {name: node.get(name) for name in RESERVED}
    for name, part in parts.items():
        if part is not None and not isinstance(part, Mapping):
            fix = f"write sweep.{name}: {{_target_: …}}; values for the group {name} go on the command line, {name}=a,b"
            raise BadInput(Problem("configuration", f"sweep.{name}", "is not a component", got=part, fix=fix))
    usual = {key: _text(values) for key, values in node.items() if key not in (*RESERVED, *(o.key for o in parsed))}
    swept = {o.key: o.text for o in parsed if o.is_sweep} | {key: f"{key}={text}" for key, text in usual.items()}
    if fixed := [key for key in swept if key.split(".")[0] in _ONE_FOR_ALL]:
        fix = "give one value: arms are compared by it" if "objective" in fixed[0] else "give one: arms share it"
        raise BadInput([Problem(COMMAND_LINE, key, "can't be swept", got=swept[key], fix=fix) for key in fixed])
    allow = tuple(root.get("allow") or ())
    return Request(given, swept, parts["launcher"] or None, parts["search"] or None, allow)


def _text(values: Any) -> str:
    return ",".join(map(str, values)) if isinstance(values, list) else str(values)


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> list[list[str]]:
    """Overrides of each run: the product of all swept values, the last one changing fastest.

    Raises: BadInput for a sweep without a list of values (``interval``).
    """
    request = read_request(overrides, config_dir)
    groups = Groups.find(config_roots(config_dir))
    given = [o.text for o in parse(overrides)]
    lines = [*given, *(text for text in request.swept.values() if text not in given)]
    return [list(combination) for combination in itertools.product(*(sweep_values(text, groups) for text in lines))]


def sweep_values(text: str, groups: Groups) -> list[str]:
    """The overrides that one override with several values stands for; itself if it has one value.

    Raises: BadInput for an interval, which only a search draws from.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parse([text])
    override = OverridesParser.create().parse_override(text)
    if not override.is_sweep_override():
        return [text]
    key = text.partition("=")[0]
    if override.is_discrete_sweep() and (glob := getattr(override.value(), "filter", None)) is None:
        if values := [f"{key}={value}" for value in override.sweep_string_iterator()]:
            return values
        raise BadInput(Problem(COMMAND_LINE, text, "has no values", fix=f"list some: {key}=a,b,c or {key}=range(0,3)"))
    if override.is_discrete_sweep() and override.key_or_group in groups:
        return [f"{key}={option}" for option in glob(sorted(groups.options[override.key_or_group]))]
    raise BadInput(Problem(COMMAND_LINE, text, "has no list of values", fix=_LIST_THEM.format(key=key)))


def is_seed(override: str) -> bool:
    """Whether an override repeats an arm (``seed=1``, ``rl_1.seed=1``) rather than making another one."""
    key = override.partition("=")[0].lstrip("+")
    return key == "seed" or key.endswith(".seed")


def labels(combinations: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """What tells each run from the others: its overrides without those that all have, secrets hidden.

    Returns: ``overrides``, all of them; ``arm``, those that are no seed, "(no change)" for none; ``seed``, what those
        that are one read, "" for none.
    """
    common = set(combinations[0]).intersection(*combinations) if len(combinations) > 1 else set()
    return [named([text for text in lines if text not in common]) for lines in combinations]


def named(overrides: Sequence[str]) -> dict[str, str]:
    """The names of one run by the overrides that are its own, as in `labels`."""
    shown = [redact(text) for text in overrides]
    arm = " ".join(text for text in shown if not is_seed(text)) or "(no change)"
    seed = " ".join(text.partition("=")[2] for text in shown if is_seed(text))
    return {"overrides": " ".join(shown) or "(no change)", "arm": arm, "seed": seed}


def repetitions(prepared: Sequence[Any]) -> dict[int, int]:
    """Number of a run → number of the first that is the same run: every setting of every stage has the same value,
    however it was written (``seed=1,1``, ``0.1,0.10``)."""
    first: dict[str, int] = {}
    found = {}
    for number, each in enumerate(prepared):
        content = [[dataclasses.asdict(spec) for spec in each.specs], each.config.root.get("objective")]
        earlier = first.setdefault(json.dumps(content, sort_keys=True, default=str), number)
        if earlier != number:
            found[number] = earlier
    return found


def repeated(names: Sequence[str], again: Mapping[int, int]) -> list[str]:
    """One line that says which runs are left out because they are another once more; none if none is."""
    if not again:
        return []
    pairs = dict.fromkeys(_spelt(names[number], names[earlier]) for number, earlier in again.items())
    shown = "; ".join(list(pairs)[:_SHOWN]) + ("; …" if len(pairs) > _SHOWN else "")
    count = "1 run is" if len(again) == 1 else f"{len(again)} runs are"
    return [f"{count} another one once more, built and counted once: {shown}"]


def _spelt(run: str, earlier: str) -> str:
    return f"{run} (twice)" if run == earlier else f"{run} is {earlier}"
