"""Nodes to objects."""

import functools
from pathlib import Path

import pytest
from toys.parts import Algorithm, Mix, Small

from components.runtime import StageArtifact
from flows.build import ALLOW_VARIABLE, build, locate

ALLOW = ["toys"]


def test_a_node_becomes_its_object_with_nested_nodes_built_first():
    mix = build(
        {
            "_target_": "toys.parts.Mix",
            "terms": {"a": {"_target_": "toys.parts.constant", "value": 2.0}},
            "weights": {"a": 1.0},
        },
        allow=ALLOW,
    )
    assert isinstance(mix, Mix)
    assert mix.terms["a"](0.0) == 2.0
    assert mix.weights == {"a": 1.0}


def test_a_partial_node_waits_for_its_remaining_arguments():
    node = {"_target_": "toys.parts.clip", "_partial_": True, "eps_low": 0.2, "eps_high": 0.5}
    clip = build({"_target_": "toys.parts.Algorithm", "surrogate": node}, allow=ALLOW)
    assert isinstance(clip, Algorithm)
    assert isinstance(clip.surrogate, functools.partial)
    assert clip.surrogate(2.0) == 1.5


def test_an_input_node_is_the_directory_of_that_artifact():
    artifact = StageArtifact("base", "k", Path("/store/base/k"), "d")
    assert build({"path": {"_input_": "base"}}, {"base": artifact}) == {"path": Path("/store/base/k")}
    assert build([{"_input_": "base"}], {"base": Path("/elsewhere")}) == [Path("/elsewhere")]


def test_building_does_not_change_the_node():
    node = {"_target_": "toys.parts.Small", "width": 3}
    build(node, allow=ALLOW)
    assert node == {"_target_": "toys.parts.Small", "width": 3}


@pytest.mark.parametrize(
    "target", ["os.system", "builtins.open", "toysx.parts.clip", "componentsx.f", "subprocess.run"]
)
def test_a_target_outside_the_allowed_packages_is_never_imported(target):
    with pytest.raises(ValueError, match="outside the allowed packages"):
        locate(target, ["components", *ALLOW])


def test_workers_learn_of_allowed_packages_from_the_environment(monkeypatch):
    node = {"_target_": "toys.parts.Small", "width": 3}
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="add its package to allow"):
        build(node)
    monkeypatch.setenv(ALLOW_VARIABLE, "toys")
    assert build(node) == Small(3)


def test_an_error_in_a_component_names_it():
    with pytest.raises(TypeError) as error:
        build({"_target_": "toys.parts.constant"}, allow=ALLOW)
    assert "toys.parts.constant" in error.value.__notes__[0]
