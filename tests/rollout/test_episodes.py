"""Environments that take their time: what waits leaves the batch, comes back, and changes nothing."""

import random
import threading
import time
from dataclasses import dataclass, field

import pytest
import torch
from test_engines import assert_same, flat, requests

from components.environments.protocol import Step
from components.rollout.episodes import Errands, Late, do
from components.rollout.hf_engine import HFEngine
from components.rollout.sampling import Sampling
from components.rollout.spans import turns
from components.rollout.torch_engine import TorchEngine

pytestmark = pytest.mark.usefixtures("either_way_of_decoding")


@pytest.fixture(scope="module")
def talkative(tokenizer, make_small_decoder):
    """A random policy that often writes </tool> and sometimes ends its turn."""
    return _talkative(tokenizer, make_small_decoder("Llama", len(tokenizer)))


def _talkative(tokenizer, decoder):
    with torch.no_grad():
        for name, strength in (("</tool>", 0.9), ("<|im_end|>", 0.4)):
            direction = decoder.model.get_input_embeddings().weight.mean(0)
            decoder.head[tokenizer.convert_tokens_to_ids(name)] += strength * direction.sign()
    return decoder


@dataclass
class Slow:
    """Answers with the turn's number and length, after a delay that is different every time."""

    asynchronous: bool = True
    delay: float = 0.0
    misbehave: dict = field(default_factory=dict)
    seconds: float = 30.0
    inspects: bool = True
    stop: tuple[str, ...] = ("</tool>",)
    wrapper: tuple[str, str] = ("<result>", "</result>")
    opened: list = field(default_factory=list)
    closed: list = field(default_factory=list)

    def reset(self, task):
        self.opened.append(task.id)
        return _SlowEpisode(self, task)


@dataclass
class _SlowEpisode:
    environment: Slow
    task: object
    count: int = 0

    def step(self, text):
        if self.environment.delay:
            time.sleep(random.random() * self.environment.delay)
        how = self.environment.misbehave.get(self.task.id)
        if how is not None:
            how()
        self.count += 1
        return Step(f"{self.count}:{len(text)}", info={"calls": 1}, reward=float(len(text)))

    def state(self):
        return {"calls": self.count}

    def close(self):
        self.environment.closed.append(self.task.id)


@pytest.mark.parametrize("max_batch", [5, 64])
def test_how_long_tools_take_changes_no_bit(talkative, tokenizer, max_batch):
    prompts, sampling = requests(12, 3), Sampling(60)
    expected = TorchEngine(talkative, tokenizer).generate(prompts, sampling, Slow(asynchronous=False))
    assert sum(c.info.get("calls", 0) for c in flat(expected)) > 30
    for delay in (0.0, 0.004, 0.03):
        engine = TorchEngine(talkative, tokenizer, max_batch=max_batch)
        got = engine.generate(prompts, sampling, Slow(delay=delay))
        assert_same(got, expected)
        assert [c.state for c in flat(got)] == [c.state for c in flat(expected)]
        assert [c.turn_rewards for c in flat(got)] == [c.turn_rewards for c in flat(expected)]


def test_both_engines_and_every_cache_wait_alike(tokenizer, make_small_decoder):
    decoder = _talkative(tokenizer, make_small_decoder("Mistral", len(tokenizer), sliding_window=16))
    assert not decoder.new_cache().mergeable
    prompts, sampling = requests(3, 2), Sampling(40)
    expected = flat(HFEngine(decoder, tokenizer).generate(prompts, sampling, Slow(asynchronous=False)))
    assert any(c.info for c in expected)
    for engine in (HFEngine(decoder, tokenizer), TorchEngine(decoder, tokenizer)):
        got = flat(engine.generate(prompts, sampling, Slow(delay=0.01)))
        assert [(c.tokens, c.finish, c.state, c.turn_rewards) for c in got] == [
            (c.tokens, c.finish, c.state, c.turn_rewards) for c in expected
        ]


def test_the_engine_decodes_on_while_a_tool_has_not_answered(talkative, tokenizer):
    """The tool of one episode answers only when all others are over; a batch that waits could never end."""
    prompts, sampling = requests(8, 1), Sampling(60)
    plain = Slow(asynchronous=False)
    expected = TorchEngine(talkative, tokenizer).generate(prompts, sampling, plain)
    callers = [p.task.id for p, (c,) in zip(prompts, expected, strict=True) if c.info]
    patient = callers[0]
    others_closed = threading.Event()

    class Watching(Slow):
        def reset(self, task):
            if task.id != patient:
                return super().reset(task)
            episode = super().reset(task)
            episode.environment = Slow(misbehave={patient: lambda: others_closed.wait(60)})
            return episode

    class Closing(list):
        def append(self, name):
            super().append(name)
            if len(set(self) - {patient}) == len(prompts) - 1:
                others_closed.set()

    watching = Watching(closed=Closing(), seconds=120)
    got = TorchEngine(talkative, tokenizer).generate(prompts, sampling, watching)
    assert others_closed.is_set()
    assert_same(got, expected)


def _raise(error):
    def do_it():
        raise error

    return do_it


@pytest.mark.parametrize(
    ("how", "finish", "error"),
    [
        (_raise(RuntimeError("broken")), "failed", "RuntimeError: broken"),
        (_raise(SystemExit(3)), "failed", "SystemExit: 3"),
        (_raise(MemoryError()), "failed", "MemoryError: "),
        (_raise(TimeoutError("its own clock")), "timeout", "TimeoutError: its own clock"),
        (lambda: time.sleep(3600), "timeout", "Late: no answer within 5 s"),
    ],
    ids=["raises", "exits", "memory", "says so", "hangs"],
)
def test_a_tool_that_misbehaves_costs_its_own_episode_only(talkative, tokenizer, how, finish, error):
    prompts, sampling = requests(8, 2), Sampling(40)
    engine = TorchEngine(talkative, tokenizer, max_batch=10)
    expected = engine.generate(prompts, sampling, Slow(asynchronous=False))
    environment = Slow(misbehave={"t3": how}, seconds=5.0 if "within" in error else 120.0)
    got = engine.generate(prompts, sampling, environment)
    assert got[:3] + got[4:] == expected[:3] + expected[4:]
    hit = [c for c in got[3] if c.error]
    assert hit
    for failed, whole in zip(got[3], expected[3], strict=True):
        if failed.error:
            assert (failed.finish, failed.error, failed.state) == (finish, error, {})
            assert failed.tokens == whole.tokens[: len(failed.tokens)]
        else:
            assert failed == whole


def test_every_episode_is_closed_once_and_asked_for_its_state_even_if_it_never_began(talkative, tokenizer):
    prompts = requests(8, 2)
    environment = Slow(delay=0.002)
    groups = TorchEngine(talkative, tokenizer).generate(prompts, Sampling(30), environment)
    assert sorted(environment.opened) == sorted(environment.closed) == sorted(p.task.id for p in prompts for _ in "ab")
    assert [c.state["calls"] for c in flat(groups)] == [c.info.get("calls", 0) for c in flat(groups)]
    assert any(c.state["calls"] == 0 for c in flat(groups))


def test_a_turns_reward_stands_at_the_turn(talkative, tokenizer):
    groups = TorchEngine(talkative, tokenizer).generate(requests(8, 2), Sampling(50), Slow())
    checked = 0
    for completion in flat(groups):
        spans = turns(completion.action_mask)
        assert len(spans) - len(completion.turn_rewards) in (0, 1)
        for (first, end), reward in zip(spans, completion.turn_rewards, strict=False):
            assert len(tokenizer.decode(completion.tokens[first:end])) == reward
            checked += 1
    assert checked > 10


def test_state_that_cannot_be_told_fails_the_episode(talkative, tokenizer):
    class Mute(Slow):
        def reset(self, task):
            episode = super().reset(task)
            if task.id == "t1":
                episode.state = _raise(OSError("the disk is gone"))
            return episode

    for asynchronous in (False, True):
        groups = TorchEngine(talkative, tokenizer).generate(
            requests(3, 1), Sampling(20), Mute(asynchronous=asynchronous)
        )
        assert [g[0].error for g in groups] == ["", "OSError: the disk is gone", ""]
        assert groups[1][0].finish == "failed"


def test_an_engine_that_stops_closes_the_episodes_it_leaves(talkative, tokenizer, monkeypatch):
    environment = Slow(asynchronous=False)
    steps = iter(range(30))
    original = type(talkative.new_cache()).step

    def step(self, *given):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return original(self, *given)

    monkeypatch.setattr(type(talkative.new_cache()), "step", step)
    with pytest.raises(KeyboardInterrupt):
        TorchEngine(talkative, tokenizer).generate(requests(8, 2), Sampling(60), environment)
    assert environment.opened
    assert set(environment.opened) == set(environment.closed)


def test_late_answers_are_dropped_and_their_keys_free():
    errands = Errands(0.05)
    go = threading.Event()
    errands.send("a", lambda: go.wait(60))
    ((key, result),) = errands.back(wait=True)
    assert key == "a" and isinstance(result, Late)
    errands.seconds = 60.0
    errands.send("a", lambda: 7)
    go.set()
    assert errands.back(wait=True) == [("a", 7)]
    assert errands.back() == [] and len(errands) == 0


def test_one_piece_of_work_raises_what_it_raised():
    assert do(lambda: 3, 60) == 3
    with pytest.raises(KeyError, match="gone"):
        do(lambda: {}["gone"], 60)


def test_turns_are_the_runs_of_the_mask():
    assert turns([True, True, False, True, False, False, True]) == [(0, 2), (3, 4), (6, 7)]
    assert turns([False, True]) == [(1, 2)]
    assert turns([]) == turns([False]) == []
