"""Environments whose tools are anyone's functions, before anything runs."""

import pytest

from flows.stage import StageSpec
from flows.supply_tools import tool_problems

SOURCE = """
import threading

def sound(a: int) -> int:
    "Fine."
    return a

def untyped(a): return a
def unknown(a: "Missing"): return a
def threads(a: threading.Thread): return a
def private(_a: int): return _a

class Called:
    def __call__(self, a: int): return a

called = Called()
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    (tmp_path / "anyones_tools.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)

    def of(name, *tools):
        nodes = [{"_target_": f"anyones_tools.{tool}", "_partial_": True} for tool in tools]
        environment = {"_target_": "components.environments.agent.ToolEnvironment", "tools": nodes}
        return StageSpec(name, "x", settings={"environment": environment})

    return of


def problems(*specs):
    return list(map(str, tool_problems(specs, {}, ("components", "anyones_tools"))))


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        (("untyped",), "tool anyones_tools.untyped: parameter 'a' has no type. Fix: annotate it."),
        (("unknown",), "tool anyones_tools.unknown: parameter 'a': the type 'Missing' cannot be read"),
        (("threads",), "tool anyones_tools.threads: parameter 'a': the type threading.Thread has no JSON schema"),
        (("private",), "tool anyones_tools.private: parameter '_a' begins with an underscore. Fix: rename it"),
        (("called",), "tools: an object of anyones_tools.Called is no function. Fix: "),
        (("sound", "sound"), "tools: more than one is named sound. Fix: rename one."),
    ],
)
def test_what_cannot_be_a_tool_is_one_problem_of_its_stages(stage, tools, told):
    (problem,) = problems(stage("rl", *tools), stage("evaluate", *tools), stage("other", "sound"))
    assert problem.startswith(f"stages rl, evaluate environment: {told}")
    assert "Traceback" not in problem and "\n" not in problem


def test_sound_tools_are_no_problem(stage):
    assert problems(stage("rl", "sound")) == []
