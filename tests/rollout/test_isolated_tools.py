"""Episodes whose tools have a process each: what one of them does costs its own rollout, and no other a bit."""

import pytest
from agents import make_policy, make_tokenizer
from trouble import Trouble

from components.environments.agent import ToolEnvironment
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine
from components.stages.shared import Policy
from components.types import Message, Task


@pytest.fixture(scope="module")
def rollouts(make_small_decoder):
    """(environment, what task 3 does) -> rollouts of eight tasks."""
    tokenizer = make_tokenizer("qwen")
    decoder = make_policy(tokenizer, "qwen", make_small_decoder)

    def sampled(environment, how=None):
        tasks = [
            Task(f"t{i}", (Message("user", "a"),), None, "exact", meta={"how": how} if i == 3 else {}) for i in range(8)
        ]
        policy = Policy(decoder.model, tokenizer, decoder, TorchEngine(decoder, tokenizer, max_batch=10))
        return policy.sample(tasks, 4, Sampling(80), environment, (0, "trouble"))

    return sampled


@pytest.fixture(scope="module")
def expected(rollouts):
    found = rollouts(ToolEnvironment(tools=[Trouble()], isolate="never"))
    assert all(any(r.info.get("tool_calls") for r in group) for group in found)
    assert any(r.state["trouble"]["said"] > 1 for group in found for r in group)
    return found


@pytest.mark.parametrize(
    ("how", "finish"),
    [("kill", "failed"), ("exit", "failed"), ("hang", "timeout"), ("flood", None), ("raise", None)],
)
def test_a_tool_that_ends_hangs_floods_or_raises_costs_its_own_rollout(rollouts, expected, how, finish):
    environment = ToolEnvironment(tools=[Trouble()], seconds=10.0 if how == "hang" else 120.0)
    got = rollouts(environment, how)
    environment.close()
    assert got[:3] + got[4:] == expected[:3] + expected[4:]
    if how == "flood":
        assert got[3] == expected[3]
    for rollout, whole in zip(got[3], expected[3], strict=True):
        if not whole.info.get("tool_calls", 0) > whole.info.get("tool_invalid", 0):
            assert rollout == whole  # it never called the tool
        elif finish is not None:
            assert (rollout.finish, rollout.state) == (finish, {})
            assert rollout.tokens == whole.tokens[: len(rollout.tokens)]
        elif how == "raise":
            assert rollout.info["tool_failed"] > 0 and rollout.finish != "failed"
    assert any(rollout != whole for rollout, whole in zip(got[3], expected[3], strict=True)) == (how != "flood")
