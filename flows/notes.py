"""What works and yet can't be meant: told before a run, which goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flows.checks import own_function, with_defaults
from flows.stage import StageSpec

if TYPE_CHECKING:
    from flows.compose import Config


def notes(config: Config, specs: Sequence[StageSpec]) -> Iterator[str]:
    """Choices that reach nothing, and what stages say of settings that were made for them alone.

    A stage says so by a function ``<name>_notes(settings, given) -> list[str]`` next to it; ``given`` has the settings
    of `only` for this stage.
    """
    for key in unused_choices(config):
        yield f"no stage of pipeline {config.pipeline} uses {key}"
    patches: dict[str, Any] = dict(config.root.get("only") or {})
    for spec in specs:
        given = patches.get(spec.name)
        if given and (function := own_function(spec.target, "notes")) is not None:
            yield from (f"stage {spec.name} {line}" for line in function(with_defaults(spec.settings), given))


def unused_choices(config: Config) -> list[str]:
    """Overrides that reach nothing: the group they set is used by no stage of this pipeline."""
    for_the_run = {"pipeline", "experiment", "launcher", "tracking", "sweep", "hydra"}
    used = set().union(*config.references.values()) | for_the_run
    touched = {text.lstrip("+~").partition("=")[0].split(".")[0].split("@")[0] for text in config.overrides}
    return sorted(key for key in touched if key in config.groups and key not in used)
