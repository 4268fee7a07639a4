"""Every yaml below conf/: what it names exists and takes the settings it gives. (That each option passes the checks of
a run is in test_preflight.py; here the components themselves are asked.)"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.build import ALLOWED, build, stage_specs
from flows.compose import compose
from flows.stage import StageSpec

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(file for file in CONF.rglob("*.yaml"))
GROUPS_OF_COMPONENTS = ("algorithm", "curriculum", "data", "engine", "environment", "reward")


def name(file: Path) -> str:
    return str(file.relative_to(CONF).with_suffix(""))


def nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if "_target_" in value:
            yield value
        for item in value.values():
            yield from nodes(item)
    elif isinstance(value, list):
        for item in value:
            yield from nodes(item)


@pytest.mark.parametrize("file", FILES, ids=name)
def test_every_target_exists_and_takes_its_settings(file: Path) -> None:
    for node in nodes(yaml.safe_load(file.read_text())):
        module, _, attribute = node["_target_"].rpartition(".")
        signature = inspect.signature(getattr(importlib.import_module(module), attribute))
        settings = {k: value for k, value in node.items() if not k.startswith("_") and k != "defaults"}
        if list(signature.parameters)[:2] == ["inputs", "out"]:
            settings |= {"out": None}  # the runner's; `inputs` is a key of the stage's node as well
            settings.setdefault("inputs", {})
            missing = {
                key for key, p in signature.parameters.items() if p.default is p.empty and key not in settings
            }  # what a pipeline fills in
            settings |= dict.fromkeys(missing)
        bind = signature.bind_partial if node.get("_partial_") else signature.bind
        bind(**settings)


@pytest.mark.parametrize("file", [file for file in FILES if file.parent.name in GROUPS_OF_COMPONENTS], ids=name)
def test_every_component_is_built(file: Path) -> None:
    if "???" in file.read_text() or "_input_" in file.read_text():  # needs a path of the user's or of a finished stage
        pytest.skip("cannot be built alone")
    group = file.parent.name
    node = compose([f"{group}={file.stem}"]).root[group]
    assert build(node, allow=ALLOWED) is not None


def stages(*overrides: str) -> dict[str, StageSpec]:
    return {spec.name: spec for spec in stage_specs(compose(overrides))}


DEFAULT = stages()


@pytest.mark.parametrize(
    ("override", "reached"),
    [
        ("algorithm=dr_grpo", {"rl_1", "rl_2"}),
        ("algorithm.surrogate.eps_high=0.3", {"rl_1", "rl_2"}),
        ("rl_1.algorithm=dapo", {"rl_1"}),
        ("rl_1.algorithm.surrogate.eps_high=0.3", {"rl_1"}),
        ("reward.weights.format=0.3", {"rl_1", "rl_2"}),
        ("rl_1.reward.weights.format=0.3", {"rl_1"}),
        ("rl_2.reward.kinds.general.weights.rule=0.9", {"rl_2"}),
        ("curriculum=uniform", {"rl_1", "rl_2"}),
        ("rl_2.curriculum=uniform", {"rl_2"}),
        ("model.source.hidden_size=64", {"base"}),
        ("model.rl_lr=1e-4", {"rl_1", "rl_2"}),
        ("data.scale=0.5", {"curate"}),
        ("data=reasoning_gym", {"curate"}),
        ("environment=none", {"profile", "rl_1", "rejection", "rl_2"} | {n for n in DEFAULT if n.startswith("eval_")}),
        ("launcher.processes=1", set()),
        ("tracking=none", set()),
    ],
)
def test_an_override_reaches_every_stage_that_uses_it_and_no_other(override: str, reached: set[str]) -> None:
    changed = stages(override)
    assert {n for n in DEFAULT if changed[n].settings != DEFAULT[n].settings} == reached


def test_another_model_reaches_every_stage_that_has_a_figure_of_it() -> None:
    changed = stages("model=pretrained", "model.source.path=here")
    reached = {n for n in DEFAULT if changed[n].settings != DEFAULT[n].settings}
    assert reached == set(DEFAULT) - {"curate", "preferences", "report"}


def test_the_seed_reaches_every_stage() -> None:
    assert {spec.seed for spec in stages("seed=5").values()} == {5}


def test_the_smoke_pipeline_takes_any_data_and_makes_the_built_in_ones_small():
    def data(*overrides):
        return compose(["pipeline=smoke", *overrides]).root["data"]

    assert data()["scale"] == data("data=builtin_chat")["scale"] == 0.02
    assert data("data.scale=0.5")["scale"] == 0.5
    assert compose().root["data"]["scale"] == 1.0
    assert "scale" not in data("data=jsonl", "data.path=x.jsonl")
