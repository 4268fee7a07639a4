"""Every yaml of the data group builds the source it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from components.data.builtin import Builtin
from components.data.gym import ReasoningGym
from components.data.readers import Hub, Jsonl
from components.data.tables import Table

CONF = Path(__file__).parents[2] / "conf" / "data"


@pytest.mark.parametrize(
    "file",
    sorted(file for file in CONF.glob("*.yaml") if "defaults:" not in file.read_text()),
    ids=lambda file: file.stem,
)
def test_every_option_is_built(file: Path) -> None:
    node = OmegaConf.load(file)
    if OmegaConf.is_missing(OmegaConf.select(node, "reader") or OmegaConf.create(), "path"):
        node.reader.path = "questions.jsonl"
    source = instantiate(node)
    expected = {"builtin": Builtin, "jsonl": Table, "hub": Table, "reasoning_gym": ReasoningGym}
    assert type(source) is expected[file.stem]
    if isinstance(source, Table):
        assert type(source.reader) is {"jsonl": Jsonl, "hub": Hub}[file.stem]


def test_the_default_option_has_the_defaults_of_the_class() -> None:
    assert instantiate(OmegaConf.load(CONF / "builtin.yaml")) == Builtin()
