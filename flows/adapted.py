"""Whether the layers that a stage's LoRA adapters are put beside are there in the model that the run begins with."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.errors import Problem, errors
from flows.modules import literal
from flows.stage import StageSpec
from flows.supply import TINY, folder_of, nodes, source_of

_LORA = "components.models.lora.Lora"


def target_problems(specs: Sequence[StageSpec], known: Sequence[Problem]) -> Iterator[Problem]:
    """Names in ``target_modules`` that no layer of the model has, of models that are in a directory or made here.

    Args:
        known: what is wrong otherwise; nothing more is said of adapters or a model that are named there.
    """
    by_name = {spec.name: spec for spec in specs}
    wrong = {word for problem in errors(known) for word in problem.key.split(".")}
    if wrong & {"model", "target_modules"}:
        return
    kinds = literal("components.models.lora", "KINDS") or ()
    for spec in specs:
        source = source_of(spec, by_name)
        for key, node in _adapters(spec.settings):
            wanted = node.get("target_modules", "all-linear")
            names = [wanted] if isinstance(wanted, str) else list(wanted)
            there = None if source is None or wanted in kinds else _layers(source)
            if not there:
                continue
            listed = f"{', '.join(sorted(there))}; or {' or '.join(kinds)}"
            for name in names:
                if name.rpartition(".")[2] not in there:
                    near = difflib.get_close_matches(name, sorted(there), 1, 0.6)
                    fix = f"did you mean {near[0]}? There are {listed}" if near else f"name some of {listed}"
                    problem = f"the model has no layer {name!r}"
                    yield Problem(f"stage {spec.name}", f"{key}.target_modules", problem, got=wanted, fix=fix)


def _adapters(settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in settings.items():
        yield from ((key, node) for node in nodes(value) if node["_target_"] == _LORA)


def _layers(source: Mapping[str, Any]) -> set[str] | None:
    """Names of the layers of a model; None if that cannot be told without loading it."""
    from components.models import weights  # light

    if source.get("_target_") == TINY:
        return set(weights.LLAMA_LAYERS)
    folder = folder_of(source)
    if folder is None or source.get("gguf_file"):
        return None
    try:
        return weights.linear_names(weights.read_shapes(folder))
    except (OSError, ValueError):
        return None
