"""A reward of a user's own, from a directory that has nothing to do with the repository."""

from __future__ import annotations

import re

import pytest

from tests.e2e.tools import Workplace, becomes, rollouts

pytestmark = pytest.mark.timeout(600)

REWARD = """
import time
from components.types import Score

def short(task, rollout):
    return 1.0 if len(rollout.tokens) < 20 else 0.0

def style(task, rollout, *, word):
    count = rollout.response.count(word)
    return Score(min(1.0, count / 4), {"count": count})

def stuck(task, rollout):
    while True: time.sleep(1)
"""
MINE = """
defaults: [r1, _self_]
terms:
  short: {_target_: my_rewards.short, _partial_: true}
  style: {_target_: my_rewards.style, _partial_: true, word: e}
weights: {short: 0.1, style: 0.5}
"""
STUCK = """
defaults: [r1, _self_]
terms: {stuck: {_target_: my_rewards.stuck, _partial_: true}}
weights: {stuck: 0.1}
seconds: 0.2
retries: 0
"""
PIPELINE = """
# @package _global_
defaults:
  - /stage/curate@stages.curate
  - /stage/base@stages.base
  - /stage/rl@stages.rl
  - override /model: smoke
  - _self_
data: {scale: 0.02}
stages:
  base: {steps: 4}
  rl:
    inputs: {model: base, data: curate, profile: null}
    steps: 2
    quotas: {reasoning: 4}
    group_size: 4
"""


@pytest.fixture
def project(place: Workplace) -> Workplace:
    (place.project / "my_rewards.py").write_text(REWARD)
    for name, text in (("reward/mine", MINE), ("reward/stuck", STUCK), ("pipeline/zero", PIPELINE)):
        (place.project / "conf" / f"{name}.yaml").write_text(text)
    return place


def test_a_users_reward_trains_the_policy_and_a_stuck_one_stops_the_run_by_name(project: Workplace) -> None:
    run = ("run", "pipeline=zero", "orchestrator=inline", "tracking=none")
    refused = project.r1flow(*run, "reward=mine")
    assert refused.returncode == 2
    assert "add allow=[my_rewards] if you trust it" in refused.stderr + refused.stdout

    done = project.r1flow(*run, "reward=mine", "allow=[my_rewards]", "reward.weights.short=0.3")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rollouts(project.artifact("rl"))
    assert len(rows) == 2 * 4 * 4
    for row in rows:
        count = row["response"].count("e")
        assert row["term.short"] == float(len(row["tokens"]) < 20)
        assert (row["term.style"], row["term.style.count"]) == (min(1.0, count / 4), count)
        rules = row["term.accuracy"] + 0.1 * row["term.format"] + 0.2 * row["term.language"]
        assert row["total"] == pytest.approx(rules + 0.3 * row["term.short"] + 0.5 * row["term.style"])
    assert len({row["total"] for row in rows}) > 1
    assert becomes({}, project.leftovers, limit_s=30) == {}

    stopped = project.r1flow(*run, "reward=stuck", "allow=[my_rewards]")
    assert stopped.returncode == 1
    told = " ".join((stopped.stdout + stopped.stderr).split())
    assert re.search(r"the reward failed on 16 of 16 rollouts, more than max_failed=0\.05 allows", told)
    assert "stuck (my_rewards.stuck) ran over its deadline of 0.2 s and was killed" in told
    assert re.search(r"First: task [\w.-]+, rollout 1 of 4: ", told)
    assert becomes({}, project.leftovers, limit_s=30) == {}
