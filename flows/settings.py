"""What the command line means: checks the first key of every override and turns stage settings into patches.

``rl_1.steps=5`` (or ``stages.rl_1.steps=5``) is for one stage alone. Stage nodes hold ``${algorithm}``-like references,
and Hydra would write a key below such a reference into the shared node, silently for every stage. So it becomes
``++only.rl_1.steps=5``, which `flows.build` lays over the resolved stage. An option of a config group is marked
(``rl_1.algorithm=dapo`` → ``++only.rl_1.algorithm._option_=dapo``) so that settings below it may follow; so is a
deletion (``~rl_1.length`` → ``++only.rl_1.length._delete_=true``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem, did_you_mean, nearest

COMMAND_LINE = "command line"
OPTION, DELETE = "_option_", "_delete_"
BUILT_IN = Path(__file__).resolve().parent.parent / "conf"


@dataclass(frozen=True)
class Override:
    """One parsed override, ``[~|+|++]key[@package][=value]``.

    Attributes: text: as the user wrote it; sign: "", "+", "++" or "~"; value: text after the equals sign, or None.
    """

    text: str
    sign: str
    key: str
    package: str | None
    value: str | None
    is_sweep: bool

    @property
    def first(self) -> str:
        return self.key.split(".")[0]

    @property
    def path(self) -> list[str]:
        return self.key.split(".")

    @property
    def plain(self) -> str | None:
        """The value without quotes if it is a bare word or a quoted string, so that it may name an option."""
        text = (self.value or "").strip()
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        return text if text and not set(text) & set("${}[],:= ") else None


def parse(overrides: Iterable[str]) -> list[Override]:
    """Parsed overrides. Raises BadInput for each that Hydra's grammar refuses."""
    from hydra.core.override_parser.overrides_parser import OverridesParser  # 0.2 s
    from hydra.errors import HydraException

    parser, parsed, problems = OverridesParser.create(), [], []
    for text in overrides:
        try:
            o = parser.parse_override(text)
        except HydraException:
            problems.append(
                Problem(
                    COMMAND_LINE,
                    text,
                    "is not an override",
                    fix="write key=value; quote values with special characters",
                )
            )
            continue
        head, equals, value = text.partition("=")
        sign = head[: len(head) - len(head.lstrip("+~"))]
        parsed.append(Override(text, sign, o.key_or_group, o.package, value if equals else None, o.is_sweep_override()))
    if problems:
        raise BadInput(problems)
    return parsed


@dataclass(frozen=True)
class Groups:
    """The config groups and their options: directories of yaml files, the user's first."""

    options: Mapping[str, Collection[str]]

    @classmethod
    def find(cls, roots: Sequence[Path]) -> Groups:
        options: dict[str, set[str]] = {}
        for root in roots:
            for file in root.rglob("*.yaml"):
                group = file.parent.relative_to(root).as_posix()
                if group != ".":
                    options.setdefault(group, set()).add(file.stem)
        return cls(options)

    def __contains__(self, group: str) -> bool:
        return group in self.options

    def check(self, group: str, option: str, where: str, key: str) -> Problem | None:
        if option in self.options[group]:
            return None
        return Problem(
            where, key, f"no {group} is called so", got=option, fix=did_you_mean(option, self.options[group])
        )


@cache
def config_roots(config_dir: Path | None) -> tuple[Path, ...]:
    """Directories that hold configuration, first match wins: the user's own, then the built-in one."""
    if config_dir is None:
        return (BUILT_IN,)
    if not config_dir.is_dir():
        raise BadInput(
            Problem(
                COMMAND_LINE,
                "--config-dir",
                f"no such directory from {Path.cwd()}",
                got=str(config_dir),
                fix="give the directory that holds your groups",
            )
        )
    return (config_dir.resolve(), BUILT_IN)


def rewrite(
    overrides: Sequence[Override], stages: Collection[str], groups: Groups, root: Mapping[str, Any]
) -> list[str]:
    """Overrides as Hydra shall see them.

    Args:
        stages: names of the pipeline's stages.
        root: the composed configuration without these overrides; dotted keys are checked against it.

    Raises:
        BadInput: naming every override whose key leads nowhere, with the nearest spelling.
    """
    results = [line for override in overrides for line in _rewrite_all(override, stages, groups, root)]
    problems = [result for result in results if isinstance(result, Problem)]
    if problems:
        raise BadInput(problems)
    return [*_marked_options(root.get("only") or {}, groups), *(line for line in results if isinstance(line, str))]


def _marked_options(only: Mapping[str, Any], groups: Groups) -> Iterator[str]:
    """Options that yaml files choose for one stage (``only: {rl_1: {algorithm: dapo}}``), so that keys may follow."""
    for stage, patch in only.items():
        for key, value in (patch or {}).items():
            if key in groups and isinstance(value, str) and value in groups.options[key]:
                yield f"++only.{stage}.{key}={{{OPTION}: {value}}}"


def _rewrite_all(
    o: Override, stages: Collection[str], groups: Groups, root: Mapping[str, Any]
) -> Iterator[str | Problem]:
    line = _rewrite_one(o, stages, groups, root)
    if isinstance(line, str) and o.path[0] in root and _is_component(o.value):
        # Another component: Hydra would merge it into the one that is there, whose settings it doesn't have.
        yield f"++{o.key}=null"
        yield f"++{o.key}={o.value}"
    else:
        yield line


def _is_component(value: Any) -> bool:
    text = str(value).replace(" ", "")
    return text.startswith("{") and "_target_:" in text


def _rewrite_one(o: Override, stages: Collection[str], groups: Groups, root: Mapping[str, Any]) -> str | Problem:
    if o.key in groups or o.key.startswith("hydra"):
        return _check_option(o, groups)
    path = o.path
    if path[0] == "stages" and len(path) > 1:
        if path[1] not in stages:
            known = did_you_mean(path[1], stages, prefix="stages.")
            return (
                o.text
                if o.sign.startswith("+")
                else Problem(COMMAND_LINE, o.key, "no such stage in this pipeline", fix=known)
            )
        path = path[1:]
    if path[0] in stages and path[0] not in root:
        return _stage_override(o, path, groups)
    if path[0] == "only" and len(path) > 1 and path[1] in stages:
        return _stage_override(o, path[1:], groups)
    if path[0] not in root:
        allowed = [*root, *stages, *groups.options]
        what = "no such setting, group or stage" if len(path) == 1 else "begins with no setting, group or stage"
        fix = did_you_mean(path[0], allowed)
        if len(path) == 1 and stages and not fix.startswith("did you mean"):
            fix = f"a setting of one stage is written {next(iter(stages))}.{path[0]}=…; else {fix}"
        return Problem(COMMAND_LINE, o.text, what, fix=fix)
    if o.is_sweep:
        return _several_values(o)
    return _root_override(o, root)


def _check_option(o: Override, groups: Groups) -> str | Problem:
    if o.is_sweep:
        return _several_values(o)
    if o.value is None or o.key not in groups or o.plain is None:
        return o.text
    return groups.check(o.key, str(o.plain), COMMAND_LINE, o.key) or o.text


def _several_values(o: Override) -> Problem:
    return Problem(
        COMMAND_LINE,
        o.key,
        "several values for one run",
        got=o.value,
        fix="add -m to run one after the other, or put the value in quotes",
    )


def _stage_override(o: Override, path: list[str], groups: Groups) -> str | Problem:
    if len(path) == 1:
        if o.sign == "~":
            return f"~stages.{path[0]}"
        return Problem(
            COMMAND_LINE, o.text, "is a stage, not a setting", fix=f"name the setting: {path[0]}.<setting>=value"
        )
    if o.is_sweep:
        return _several_values(o)
    key = f"++only.{'.'.join(path)}"
    if o.sign == "~":
        return f"{key}.{DELETE}=true"
    option = o.plain
    if path[-1] in groups and option is not None and option != "null" and not _is_literal(option):
        return f"{key}.{OPTION}={o.value}"
    return f"{key}={o.value}"


def _is_literal(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false")
    return True


def _root_override(o: Override, root: Mapping[str, Any]) -> str | Problem:
    """Let through a key that exists or that the component around it accepts; `flows.preflight` checks the rest."""
    node: Any = root
    owner: Any = {}  # what holds `node`
    for i, part in enumerate(o.path):
        if not isinstance(node, Mapping):
            if node is None or isinstance(node, list) or "${" in str(node):
                break  # Hydra knows
            where = ".".join(o.path[:i])
            return Problem(COMMAND_LINE, o.key, f"{where} is a value, it has no keys", fix=f"write {where}=…")
        if part in node:
            owner, node = node, node[part]
            continue
        accepted = [k for k in node if not k.startswith("_")]
        if "_target_" in node:
            return f"++{o.key}={o.value}" if o.sign != "~" else _unknown(o, i, accepted)
        if "_target_" in owner and o.sign != "~" and nearest(part, accepted) is None:
            return f"++{o.key}={o.value}"  # names of the user's own: columns, quotas
        return o.text if o.sign.startswith("+") else _unknown(o, i, accepted)
    merges = isinstance(node, Mapping) and o.sign == "" and (o.value or "").lstrip().startswith("{")
    return f"++{o.key}={o.value}" if merges or o.sign == "+" else o.text


def _unknown(o: Override, i: int, accepted: list[str]) -> Problem:
    prefix = "".join(part + "." for part in o.path[:i])
    return Problem(COMMAND_LINE, o.key, f"no such key {o.path[i]!r}", fix=did_you_mean(o.path[i], accepted, prefix))
