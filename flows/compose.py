"""From overrides to one plain configuration (the only file that talks to Hydra and OmegaConf).

Hydra finds and merges the yaml files; nothing else of it is used, so no output directory, no working-directory
change and no logging set-up take place behind the user's back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem, did_you_mean
from flows.redact import hide_secrets
from flows.settings import COMMAND_LINE, Groups, Override, config_roots, parse, rewrite

MISSING = "???"
_handed: dict[tuple[tuple[str, ...], str], Config] = {}


@dataclass(frozen=True)
class Config:
    """One run's configuration.

    Attributes:
        root: plain containers, references resolved; secrets are ``{_env_: "${NAME}"}`` nodes that only
            `flows.build.build` opens. Values that must still be given are "???".
        raw: the same before references were resolved.
        choices: which option each group has.
        references: for each stage, the root keys that its node refers to.
        config_dir: the user's own configuration directory.
        overrides: as given on the command line.
    """

    root: Mapping[str, Any]
    raw: Mapping[str, Any]
    choices: Mapping[str, str]
    references: Mapping[str, frozenset[str]]
    groups: Groups
    config_dir: Path | None = None
    overrides: Sequence[str] = field(default_factory=list)

    @property
    def pipeline(self) -> str:
        return str(self.choices.get("pipeline", "?"))

    @property
    def unresolved(self) -> str:
        """The configuration as yaml, with references and without secrets: fit for logs."""
        from omegaconf import OmegaConf

        return OmegaConf.to_yaml(OmegaConf.create(dict(self.raw)))

    def stage_with(self, stage: str, groups: Mapping[str, Any]) -> Any:
        """The stage's node, resolved as if these groups had this (unresolved) content."""
        from omegaconf import OmegaConf

        merged = OmegaConf.create({**self.raw, **groups})
        return _guard(f"stage {stage}", lambda: _plain(merged.stages[stage], resolve=True), self.raw)

    def resolved(self, group: str, content: Any) -> Any:
        """What a group's (unresolved) content is in this configuration."""
        from omegaconf import OmegaConf

        merged = OmegaConf.create({**self.raw, "_content_": content})  # a reference to the group means the run's own
        return _guard(group, lambda: _plain(merged, resolve=True)["_content_"], self.raw)

    def option(self, group: str, option: str) -> Any:
        """Content of ``<group>/<option>.yaml``, unresolved."""
        import hydra

        with _hydra(self.config_dir):
            loaded = _guard(f"{group}/{option}.yaml", lambda: hydra.compose(overrides=[f"+{group}={option}"]))
        return hide_secrets(_plain(loaded, resolve=False)).get(group)


def hand_over(config: Config) -> None:
    """Give this process what another one has composed: `compose` then gives it back, once."""
    _handed[tuple(config.overrides), str(config.config_dir)] = config


def compose(overrides: Sequence[str] = (), config_dir: Path | None = None) -> Config:
    """Compose the configuration of one run.

    Raises:
        BadInput: a key, option, stage or reference that doesn't exist; yaml that can't be read.
    """
    if (known := _handed.pop((tuple(overrides), str(config_dir)), None)) is not None:
        return known
    import hydra
    from omegaconf import OmegaConf

    roots = config_roots(config_dir)
    groups, parsed = Groups.find(roots), parse(overrides)
    choosing = [o for o in parsed if o.key in groups]
    _check_options(choosing, groups)
    with _hydra(config_dir):

        def composed(lines: Sequence[str]) -> Any:
            return _guard(
                "configuration", lambda: hydra.compose("config", overrides=list(lines), return_hydra_config=True)
            )

        base = composed([o.text for o in choosing])
        _check_shape(_plain(base, resolve=False))
        stages = [name for name, node in (base.get("stages") or {}).items() if node is not None]
        root = {k: v for k, v in _plain(base, resolve=False).items() if k != "hydra"}
        lines = rewrite(parsed, stages, groups, root)
        cfg = composed(lines) if len(parsed) > len(choosing) else base
    choices = {k: v for k, v in cfg.hydra.runtime.choices.items() if "/" not in k and v is not None}
    raw = hide_secrets({k: v for k, v in _plain(cfg, resolve=False).items() if k != "hydra"})
    _check_shape(raw)
    safe = OmegaConf.create(raw)
    return Config(
        root=_guard("configuration", lambda: _plain(safe, resolve=True), raw),
        raw=raw,
        choices=choices,
        references=_references(raw),
        groups=groups,
        config_dir=config_dir,
        overrides=list(overrides),
    )


@contextmanager
def _hydra(config_dir: Path | None) -> Iterator[None]:
    """Context in which ``hydra.compose`` finds the user's files first, then the built-in ones."""
    # Hydra's public `initialize_config_dir` knows one directory and wants the primary config in it; a user's holds
    # groups only. These are its own steps, with one directory more.
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    *before, built_in = config_roots(config_dir)
    search_path = create_config_search_path(str(built_in))
    for root in before:
        search_path.prepend("user", f"file://{root}", anchor="main")
    GlobalHydra.instance().clear()
    version.setbase("1.3")
    Hydra.create_main_hydra2("r1flow", search_path)
    try:
        yield
    finally:
        GlobalHydra.instance().clear()


def _plain(cfg: Any, *, resolve: bool) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(cfg, resolve=resolve)  # type: ignore[return-value]


def _check_options(choosing: Sequence[Override], groups: Groups) -> None:
    problems = []
    for o in choosing:
        if o.value is not None and not o.is_sweep and o.plain is not None:
            problems.append(groups.check(o.key, str(o.plain), COMMAND_LINE, o.key))
    if found := [p for p in problems if p is not None]:
        raise BadInput(found)


def _check_shape(raw: Mapping[str, Any]) -> None:
    """``stages`` and ``only`` hold a mapping for every stage, or null, where they are read. Raises: BadInput."""
    for key, example in (("stages", "rl_1.steps=40"), ("only", "rl_1.steps=40")):
        node = raw.get(key)
        wrong = [(key, node)] if not isinstance(node, Mapping | None) else []
        wrong += [(f"{key}.{name}", v) for name, v in (node or {}).items() if not _is_node(v)] if not wrong else []
        if wrong:
            place, got = wrong[0]
            fix = f"a setting of one stage is written {example}"
            raise BadInput(Problem("configuration", place, "is not a mapping", got=got, fix=fix))

    for group in ("pipeline", "experiment"):
        if isinstance(raw.get(group), Mapping) and "stages" in raw[group]:
            problem = f"its stages stand under {group!r}, where nothing reads them"
            fix = "make `# @package _global_` the first line of its file"
            raise BadInput(Problem("configuration", group, problem, fix=fix))


def _is_node(value: Any) -> bool:
    return isinstance(value, Mapping | None) or (isinstance(value, str) and value.startswith("${"))


def _guard(where: str, action: Any, known: Collection[str] = ()) -> Any:
    """Run ``action``; what Hydra, OmegaConf or the yaml reader say of bad input becomes BadInput."""
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return action()
    except MissingConfigException as error:
        raise BadInput(_missing_config(error)) from error
    except YAMLError as error:
        raise BadInput(Problem(where, "", f"yaml can't be read: {_one_line(error)}", fix="correct the file")) from error
    except (OmegaConfBaseException, HydraException) as error:
        key = getattr(error, "full_key", None) or ""
        raise BadInput(Problem(where, key, _one_line(error.__cause__ or error), fix=_remedy(error, known))) from error


def _missing_config(error: Any) -> Problem:
    missing = str(error.missing_cfg_file or "")
    group, _, option = missing.rpartition("/")
    near = did_you_mean(option, error.options or []) if error.options else "create the file, or name another option"
    return Problem("configuration", group, "no such option", got=option, fix=near)


def _one_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    mark = getattr(error, "problem_mark", None)
    place = f"{mark.name}:{mark.line + 1} {getattr(error, 'problem', '')}" if mark is not None else text
    return place.strip().rstrip(".")


def _remedy(error: BaseException, known: Collection[str]) -> str:
    if "nterpolation" in type(error).__name__:
        named = re.search(r"key '([^'.]+)", str(error))
        if named and known and named[1] not in known:
            return did_you_mean(named[1], known)
        return "correct the ${…} reference, or define the key it names"
    return "correct the value, or the file it comes from"


_REFERENCE = re.compile(r"\$\{\s*([A-Za-z_][\w]*)")


def _references(raw: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    def direct(node: Any) -> set[str]:
        if isinstance(node, Mapping):
            return set().union(*map(direct, node.values()))
        if isinstance(node, list):
            return set().union(*map(direct, node))
        return set(_REFERENCE.findall(node)) if isinstance(node, str) else set()

    def reached(node: Any) -> frozenset[str]:
        seen, todo = set(), direct(node)
        while todo:
            key = todo.pop()
            if key in raw and key not in seen:
                seen.add(key)
                todo |= direct(raw[key])
        return frozenset(seen)

    patches = raw.get("only") or {}
    return {name: reached([node, patches.get(name)]) for name, node in (raw.get("stages") or {}).items()}
