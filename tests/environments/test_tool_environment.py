"""The agent's environment: turns, limits, counters, isolation of one episode from another."""

import os
import socket
import time
from pathlib import Path

import pytest
from toolbox import Counter, add, fail, nap

from components.environments.agent import ToolEnvironment, tool_environment_check
from components.environments.tools.host import Broken
from components.environments.tools.process import Conversation
from components.types import Message, Task


def task(**meta):
    return Task("t", (Message("user", "go"),), None, "exact", meta=meta)


def call(name, **arguments):
    import json

    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def apart():
    environment = ToolEnvironment(tools=[add, fail, nap, Counter()], seconds=120.0, memory_mib=1024)
    yield environment
    environment.close()


def test_a_turn_is_answered_call_by_call_and_one_without_a_call_ends_the_episode():
    episode = ToolEnvironment(tools=[add, Counter()], isolate="never").reset(task(start=5))
    step = episode.step(
        call("add", a=1) + " and " + call("count", by=2) + call("count", by="x") + call("sub") + "<tool_call>"
    )
    assert step.observation == (
        "2",
        "7",
        "error: count: by: Input should be a valid integer, unable to parse string as an integer",
        "error: no tool 'sub'",
        "error: a <tool_call> without its </tool_call>",
    )
    assert dict(step.info) == {
        "steps": 1, "tool_calls": 5, "tool_malformed": 1, "tool_invalid": 3, "tool_failed": 0, "tool_refused": 0,
    }  # fmt: skip
    assert not step.done
    assert episode.step("The answer is 7.").done
    assert episode.state()["counter"]["value"] == 7


def test_a_tool_that_raises_is_told_and_counted_and_the_episode_goes_on():
    episode = ToolEnvironment(tools=[fail], isolate="never").reset(None)
    step = episode.step(call("fail", how="raise"))
    assert step.observation == ("error: ZeroDivisionError: as asked",)
    assert step.info["tool_failed"] == 1
    assert episode.step(call("fail", how="no")).observation == ("well",)


def test_limits_refuse_and_end():
    environment = ToolEnvironment(tools=[add], isolate="never", max_turns=2, max_calls=3, max_parallel=2)
    episode = environment.reset(None)
    step = episode.step(call("add", a=1) * 5)
    assert step.observation == ("2", "2", "error: no more calls; 3 not made")
    assert (step.info["tool_calls"], step.info["tool_refused"]) == (2, 3)
    assert episode.step(call("add", a=1) * 2).observation == ("2", "error: no more calls; 1 not made")
    last = episode.step(call("add", a=1))
    assert (last.done, last.cut, last.observation, last.info["tool_refused"]) == (True, True, None, 1)


def test_costs_are_the_turns_reward():
    costs = {"invalid": 0.5, "refused": 0.25, "step": 0.125}
    episode = ToolEnvironment(tools=[add], isolate="never", max_parallel=2, costs=costs).reset(None)
    assert episode.step(call("add", a="x") + call("add", a=1) + call("add", a=1)).reward == -(0.5 + 0.25 + 0.125)
    assert episode.step("done").reward == 0


def test_a_task_offers_only_the_tools_it_names():
    environment = ToolEnvironment(tools=[add, Counter()], isolate="never")
    few = task(tools=["count"])
    assert [s["function"]["name"] for s in environment.schemas(few)] == ["count"]
    assert [s["function"]["name"] for s in environment.schemas(None)] == ["add", "count"]
    assert environment.reset(few).step(call("add", a=1)).info["tool_invalid"] == 1
    assert '"count"' in environment.manual(few) and '"add"' not in environment.manual(few)


def test_long_results_are_cut():
    step = ToolEnvironment(tools=[add], isolate="never", max_chars=5).reset(None).step(call("add", a=10**9))
    assert step.observation == ("1000…",)


def test_foreign_tools_get_a_process_per_episode(apart):
    one, two = apart.reset(task(start=1)), apart.reset(task(start=10))
    assert apart.asynchronous
    assert one.step(call("count", by=1)).observation == ("2",)
    assert two.step(call("count", by=1)).observation == ("11",)
    states = [episode.state()["counter"] for episode in (one, two)]
    assert [s["value"] for s in states] == [2, 11]
    assert len({s["process"] for s in states} | {os.getpid()}) == 3
    for episode in (one, two):
        episode.close()


@pytest.mark.parametrize(
    ("how", "error"),
    [("exit", "SystemExit"), ("kill", "process of the tools ended"), ("hang", "did not answer within 2 s")],
)
def test_what_a_tool_does_to_its_process_ends_its_episode_only(apart, how, error):
    other, hasty = apart.reset(None), ToolEnvironment(tools=[fail], seconds=2.0)
    episode = (hasty if how == "hang" else apart).reset(None)
    with pytest.raises((Broken, TimeoutError), match=error) as caught:
        episode.step(call("fail", how=how))
    assert isinstance(caught.value, TimeoutError) == (how == "hang")
    episode.close()
    assert other.step(call("add", a=1)).observation == ("2",)
    other.close()
    hasty.close()


def test_a_gigabyte_of_prints_and_a_result_without_end_cost_nothing(apart, capfd):
    episode = apart.reset(None)
    (said,) = episode.step(call("fail", how="flood")).observation
    assert said == "z" * 1999 + "…"
    (said,) = episode.step(call("fail", how="grow")).observation
    assert said.startswith("error: MemoryError")
    assert capfd.readouterr().out == ""
    episode.close()


def ends(pid):
    """Whether a process ends within half a minute."""
    for _ in range(3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_closing_an_episode_ends_its_process(apart):
    episode = apart.reset(None)
    pid = episode.state()["counter"]["process"]
    episode.close()
    assert ends(pid)


@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="needs Linux that lists children")
@pytest.mark.parametrize("closed", ["episode", "environment"])
def test_what_a_tool_started_in_a_session_of_its_own_ends_with_its_episode_and_not_before(closed):
    environment = ToolEnvironment(tools=[add, fail])
    one, two = environment.reset(None), environment.reset(None)
    left, other = (int(episode.step(call("fail", how="leave")).observation[0]) for episode in (one, two))
    (environment if closed == "environment" else one).close()
    assert ends(left)
    if closed == "episode":
        os.kill(other, 0)
        assert two.step(call("add", a=1)).observation == ("2",)
    environment.close()
    assert ends(other)


def test_a_tool_that_forks_and_returns_in_both_answers_once(apart):
    episode = apart.reset(None)
    assert episode.step(call("fail", how="fork")).observation == ("well",)
    assert [episode.step(call("count", by=1)).observation for _ in range(9)] == [(f"{i + 1}",) for i in range(9)]
    assert episode.state()["counter"]["value"] == 9
    episode.close()


@pytest.mark.parametrize("how", ["forge", "scribble"])
def test_what_a_tool_writes_to_the_connection_is_taken_for_no_answer(apart, how):
    episode, other = apart.reset(None), apart.reset(None)
    with pytest.raises(Broken, match="answered out of turn"):
        episode.step(call("fail", how=how))
    episode.close()
    assert other.step(call("add", a=1)).observation == ("2",)
    other.close()


@pytest.mark.parametrize(
    "line", [b"x", b"[]", b"{}", b'{"number": 0}', b"[" * 100_000, b'{"kind": "ok", "text": "a"}', b"\xff"]
)
def test_an_answer_of_any_form_but_the_agreed_one_breaks_the_episode(line):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(line + b"\n")
        with pytest.raises(Broken, match="answered out of turn"):
            Conversation(mine, 1 << 20).ask({"state": True}, 60.0)


def test_a_toolset_without_a_name_is_named():
    class Nameless:
        tools = (add,)

        def open(self, task): ...

    with pytest.raises(ValueError, match=r"toolset .*Nameless: has no name\. Fix: add it"):
        ToolEnvironment(tools=[Nameless()], isolate="never")


def test_tools_that_no_other_process_can_import_are_named():
    def local(a: int) -> int:
        return a

    with pytest.raises(ValueError, match="isolate: never"):
        ToolEnvironment(tools=[local])
    with pytest.raises(ValueError, match="more than one is named add"):
        ToolEnvironment(tools=[add, add], isolate="never")


def test_settings_that_make_no_sense_are_named():
    with pytest.raises(ValueError, match=r"max_turns: must be at least 1 \(got 0\).*no such event 'late'"):
        ToolEnvironment(tools=[add], max_turns=0, costs={"late": 1.0})
    assert tool_environment_check({"seconds": -1.0}) == ["seconds: must be positive (got -1.0)"]
    assert tool_environment_check({"tools": [add]}) == []


def test_an_environment_without_a_tool_is_refused():
    class Nothing:
        name, tools = "nothing", ()

        def open(self, task):
            raise AssertionError

    for none in ([], [Nothing()]):
        with pytest.raises(ValueError, match=r"tools: there are none.*Fix: name some"):
            ToolEnvironment(tools=none)
    (told,) = tool_environment_check({"tools": []})
    assert told.startswith("tools: there are none")
