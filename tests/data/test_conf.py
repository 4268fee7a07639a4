"""Every yaml of the data group builds the source it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from components.data.agent import AgentTasks
from components.data.builtin import Builtin
from components.data.gym import ReasoningGym
from components.data.programs import Programs
from components.data.public import PublicSets
from components.data.readers import Hub
from components.data.safety import SafetyPrompts
from components.data.tables import Table

CONF = Path(__file__).parents[2] / "conf" / "data"
EXPECTED = {
    "agent": AgentTasks,
    "builtin": Builtin,
    "gsm8k": Table,
    "hub": Table,
    "humaneval_style": Programs,
    "jsonl": Table,
    "math": Table,
    "pairs": Table,
    "public": PublicSets,
    "reasoning_gym": ReasoningGym,
    "xstest": SafetyPrompts,
}


@pytest.mark.parametrize(
    "file",
    sorted(file for file in CONF.glob("*.yaml") if "defaults:" not in file.read_text()),
    ids=lambda file: file.stem,
)
def test_every_option_is_built(file: Path) -> None:
    node = OmegaConf.load(file)
    if OmegaConf.is_missing(node, "path"):
        node.path = "questions.jsonl"
    elif "environment" in node:
        node.environment = None  # the run's
    elif "reader" in node and OmegaConf.is_missing(node.reader, "name"):
        node.reader.name = "org/name"
    source = instantiate(node)
    assert type(source) is EXPECTED[file.stem]
    if node.get("path") is None and "reader" in node:
        assert type(source.reader) is Hub


def test_the_default_option_has_the_defaults_of_the_class() -> None:
    assert instantiate(OmegaConf.load(CONF / "builtin.yaml")) == Builtin()
