"""The agent reward: completion, tool accuracy, efficiency, format."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from components.environments.calculator import Calculator
from components.rewards.accuracy import Accuracy
from components.rewards.agent import Completion, Form, agent_reward, agent_reward_check, efficiency, tool_accuracy
from components.rewards.format import ToolCalls
from components.rewards.mix import Mix
from tests.rewards.cases import says, task, thinks

WEIGHTS = {"completion": 0.5, "tool_accuracy": 0.2, "efficiency": 0.15, "format": 0.15}
SHIPPED = Path(__file__).parents[2] / "conf" / "reward" / "agent.yaml"
GOLD = task("42", "exact")


def shipped() -> Mix:
    calls = ToolCalls(json=False)
    lenient = Accuracy(strict=False, accept=("answer", "boxed"))
    terms = {
        "completion": Completion(accuracy=lenient),
        "tool_accuracy": tool_accuracy,
        "efficiency": efficiency,
        "format": Form(calls=calls),
    }
    return agent_reward(terms=terms, weights=WEIGHTS)


def test_the_shipped_weights_are_the_sources() -> None:
    assert yaml.safe_load(SHIPPED.read_text())["weights"] == WEIGHTS


def test_the_reward_of_an_episode_by_hand() -> None:
    calls = "<tool>1+1</tool><result>2</result><tool>?</tool><result>error</result>"
    [score] = shipped().score([(GOLD, thinks(calls, tool_calls=2, tool_invalid=1))])
    assert score.terms == {"completion": 1.0, "tool_accuracy": 0.5, "efficiency": 0.9, "format": 1.0}
    assert score.total == pytest.approx(0.5 + 0.1 + 0.135 + 0.15)


def test_what_an_episode_of_the_calculator_records_is_what_the_terms_read() -> None:
    episode, info, text = Calculator(max_calls=3).reset(None), Counter[str](), ""
    for call in ("<tool>6*7</tool>", "<tool>6*</tool>", "1</tool>", "<tool>1+1</tool>"):
        step = episode.step(call)
        text += call + (f"<result>{step.observation}</result>" if step.observation else "")
        info.update({name: int(value) for name, value in step.info.items()})
    assert info == {"tool_calls": 3, "tool_invalid": 2, "tool_refused": 1}
    rollout = thinks(text, **info)
    assert tool_accuracy(GOLD, rollout) == 0.25
    assert efficiency(GOLD, rollout) == pytest.approx(0.8)
    assert Form(calls=ToolCalls(json=False))(GOLD, rollout) == pytest.approx(0.8)  # one tag without its partner


def test_efficiency_counts_steps_of_the_environment_where_it_tells_them() -> None:
    assert [efficiency(GOLD, thinks("x", tool_calls=n)) for n in (0, 5, 20, 30)] == [1.0, 0.75, 0.0, 0.0]
    assert efficiency(GOLD, thinks("x", tool_calls=1, steps=10.0)) == 0.5
    assert efficiency(GOLD, thinks("x", finish="length")) == 0.0
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        efficiency(GOLD, thinks("x"), max_steps=0)


def test_an_episode_without_calls_has_the_accuracy_it_is_given() -> None:
    assert tool_accuracy(GOLD, thinks("x")) == 1.0
    assert tool_accuracy(GOLD, thinks("x"), nothing=0.0) == 0.0


def test_a_partial_completion_earns_less_than_a_whole_one_and_stuffing_costs() -> None:
    completion = Completion(accuracy=Accuracy(), partial=0.5)
    name = task("the red house", "exact")
    answers = ("the red house", "the red door", "the red house or the blue tower on a hill", "no")
    values = completion.batch([(name, thinks("x", answer)) for answer in answers])
    assert values == pytest.approx([1.0, 0.5 * 2 / 3, 0.5 * 2 * 3 / 13, 0.0])
    assert completion.batch([(GOLD, thinks("x", "41 or 42"))]) == [0.0]  # a number is right or wrong
    assert completion.batch([(name, thinks("x", "the red door", finish="length"))]) == [0.0]
    with pytest.raises(ValueError, match="partial must lie in"):
        Completion(accuracy=Accuracy(), partial=1.0)


def test_form_costs_a_fifth_for_each_violation() -> None:
    form = Form(calls=ToolCalls(json=False))
    assert [form(GOLD, r) for r in (thinks("x"), says("<think>x</think><answer>1</answer>!"), says("42"))] == [
        1.0,
        0.8,
        pytest.approx(0.2),
    ]
    assert form(GOLD, says("42", "length")) == 0.0


def test_a_light_completion_is_warned_of() -> None:
    assert agent_reward_check({"weights": WEIGHTS}) == []
    [line] = agent_reward_check({"weights": {**WEIGHTS, "completion": 0.2}})
    assert line.startswith("weights: warning: completion weighs 29% of the reward, less than half")
    assert "Fix: raise weights.completion" in line
    assert agent_reward_check({"weights": {"other": 1.0}})
