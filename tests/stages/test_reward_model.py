"""The reward model stage, by the part of a response that it judges, and the reward that reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from components.artifacts import write_jsonl
from components.models.optim import AdamW
from components.models.reward_head import load_scorer, load_text_scorer
from components.rewards.model import Preference as Reward
from components.runtime import Inputs, Out, StageArtifact
from components.stages.reward_model import reward_model
from components.types import Message, Preference, Rollout, Task
from tests.stages.conftest import artifact

WORDS = ("yes", "no")
MESSAGES = (Message("user", "6 + 7 = ?"),)


def pair(thought: str, i: int) -> Preference:
    good, bad = (f"<think> {thought} {i}</think><answer>{word}</answer>" for word in WORDS)
    return Preference(f"p{i}", MESSAGES, good, bad, "toy", "word")


@pytest.fixture
def preferences(tmp_path: Path) -> StageArtifact:
    folder = tmp_path / "preferences"
    thought_only = Preference(
        "q", MESSAGES, "<think>a</think><answer>yes</answer>", "<think>b</think><answer>yes</answer>"
    )
    write_jsonl(folder / "train.jsonl", [*(pair("so", i).to_json() for i in range(16)), thought_only.to_json()])
    write_jsonl(folder / "test.jsonl", [pair("then", i).to_json() for i in range(8)])
    return artifact(folder, "preferences")


def rollout(response: str) -> Rollout:
    return Rollout("t", (1,), (2,), (True,), (0.0,), response, "stop")


TASK = Task("t", MESSAGES, None, "none")


@pytest.mark.parametrize(("part", "pairs"), [("response", 17), ("answer", 16)])
def test_it_learns_from_the_part_it_is_to_judge(
    inputs: Inputs, preferences: StageArtifact, tmp_path: Path, part: str, pairs: int
) -> None:
    given = {**inputs, "preferences": preferences}
    out = Out(tmp_path, "rm", seed=0)
    figures = reward_model(given, out, optimizer=AdamW, lr=5e-3, epochs=6, batch_size=8, part=part)  # type: ignore[arg-type]
    assert figures["pairs"] == pairs  # a pair that differs in its thought alone says nothing of the answer
    assert figures["accuracy"] == 1.0
    scorer = load_text_scorer(path=tmp_path)
    assert scorer.part == load_scorer(path=tmp_path).part == part
    reward = Reward(scorer=scorer, reads=part)  # type: ignore[arg-type]
    good, bad = "<think> x</think><answer>yes</answer>", "<think> x</think><answer>no</answer>"
    other_thought = good.replace(" x", " 1 2 3 so then it is not so")
    values = reward.batch([(TASK, rollout(text)) for text in (good, bad, other_thought)])
    assert values[0] > values[1]
    if part == "answer":
        assert values[2] == values[0]
    with pytest.raises(ValueError, match=f"reads: .* was trained to judge the {part}"):
        Reward(scorer=scorer, reads="answer" if part == "response" else "response")


def test_a_response_without_an_answer_is_no_help_and_is_not_asked_about() -> None:
    asked = []

    def scorer(texts: list) -> list[float]:
        asked.extend(texts)
        return [0.0] * len(texts)

    reward = Reward(scorer=scorer, reads="answer")
    told = [rollout("<think>never ends"), rollout("<think>a</think><answer>b</answer>")]
    assert reward.batch([(TASK, r) for r in told]) == [0.0, 0.5]
    assert asked == [(MESSAGES, "<think></think><answer>b</answer>")]
    assert Reward(scorer=scorer, reads="response").batch([(TASK, replace(told[0], finish="length"))]) == [0.5]
