"""Rollouts with an environment behind HTTP are those with the same one in this process, bit for bit."""

import threading

import pytest
from agents import make_policy, make_tokenizer, say

from components.environments.agent import ToolEnvironment
from components.environments.remote.client import RemoteEnvironment
from components.environments.remote.hosting import Hosting
from components.environments.remote.server import EnvironmentServer
from components.environments.tools.keyvalue import KeyValue
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine
from components.stages.shared import Policy
from components.types import Message, Task


def environment():
    return ToolEnvironment(tools=[say, KeyValue()], isolate="never", max_turns=6, costs={"step": 0.1}, seconds=60.0)


@pytest.fixture
def remote(monkeypatch):
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", "a-token-of-tests")
    server = EnvironmentServer(Hosting(environment()), token="a-token-of-tests")
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield RemoteEnvironment(url=server.url)
    assert len(server.hosting) == 0  # every episode was closed
    server.close()
    thread.join()


@pytest.mark.parametrize("kind", ["qwen", "strict"])
def test_rollouts_over_http_are_those_in_this_process(remote, make_small_decoder, kind):
    tokenizer = make_tokenizer(kind)
    decoder = make_policy(tokenizer, kind, make_small_decoder, max_position_embeddings=2048)
    tasks = [
        Task(
            f"t{i}",
            (Message("user", "a and b"),),
            None,
            "exact",
            meta={"store": {"k": str(i)}, "tools": ["say", "get"]},
        )
        for i in range(6)
    ]

    def rollouts(acting):
        policy = Policy(decoder.model, tokenizer, decoder, TorchEngine(decoder, tokenizer, max_batch=10))
        return policy.sample(tasks, 3, Sampling(120), acting, (0, "remote"))

    expected, got = rollouts(environment()), rollouts(remote)
    assert got == expected
    flat = [rollout for group in got for rollout in group]
    assert sum(rollout.info.get("tool_calls", 0) for rollout in flat) > 10
    assert {rollout.state["store"]["k"] for rollout in flat} == set("012345")
