"""What every engine promises, whoever does the sampling."""

import copy
import math
from importlib.util import find_spec

import pytest
import torch
from vllm_stub import Stub, serving

from components.environments.protocol import Step
from components.models.decoder import make_decoder
from components.rollout.hf_engine import HFEngine
from components.rollout.protocol import Request
from components.rollout.sampling import Sampling, truncate
from components.rollout.torch_engine import TorchEngine
from components.rollout.vllm_engine import VllmEngine, vllm_engine_check
from components.types import Message, Task

ENGINES = ["torch", "hf", "vllm server", "vllm offline"]


@pytest.fixture(scope="module")
def policy(make_talkative):
    return make_talkative(ends=0.5)


@pytest.fixture(params=ENGINES)
def engine(request, policy, tokenizer):
    decoder = make_decoder(copy.deepcopy(policy.model))
    if request.param == "torch":
        yield TorchEngine(decoder, tokenizer, max_batch=5)
    elif request.param == "hf":
        yield HFEngine(decoder, tokenizer)
    elif request.param == "vllm offline":
        if find_spec("vllm") is None or not torch.cuda.is_available():
            pytest.skip("vllm is not installed, or there is no GPU")
        yield VllmEngine(decoder, tokenizer, options={"gpu_memory_utilization": 0.2, "dtype": "float32"})
    else:
        blank = make_decoder(copy.deepcopy(policy.model))
        with torch.no_grad():
            for parameter in blank.model.parameters():
                parameter.zero_()  # a server knows nothing until weights are sent
        with serving(Stub(blank, tokenizer)) as url:
            yield VllmEngine(decoder, tokenizer, mode="server", url=url, concurrency=4)


class Tool:
    """Doubles what the policy wrote before ``stop``, at most twice."""

    wrapper = ("<result>", "</result>")

    def __init__(self, *stop):
        self.stop = stop

    def reset(self, task):
        return Episode()


class Episode:
    calls = 0

    def step(self, text):
        self.calls += 1
        return Step(str(2 * len(text)), done=self.calls == 2, info={"calls": 1})


def requests(count=4, samples=3):
    return [
        Request(
            tuple(range(20 + i, 24 + 3 * i)),
            tuple(100 * i + j for j in range(samples)),
            Task(f"t{i}", (Message("user", str(i)),), None, "exact"),
        )
        for i in range(count)
    ]


def own_logp(decoder, prompt, tokens, sampling):
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = decoder.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / sampling.temperature
    if sampling.truncates:
        truncate(logits, sampling)
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def test_completions_come_in_the_order_of_prompts_and_seeds(engine):
    groups = engine.generate(requests(), Sampling(10))
    assert [len(group) for group in groups] == [3, 3, 3, 3]
    backwards = engine.generate(requests()[::-1], Sampling(10))[::-1]
    assert [[c.tokens for c in group] for group in backwards] == [[c.tokens for c in group] for group in groups]
    assert len({c.tokens for c in groups[0]}) > 1
    assert engine.generate([], Sampling(4)) == []


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}])
def test_log_probabilities_are_of_the_distribution_that_was_drawn_from(engine, policy, settings):
    sampling = Sampling(12, **settings)
    for request, group in zip(requests(), engine.generate(requests(), sampling), strict=True):
        for completion in group:
            expected = own_logp(policy, request.tokens, completion.tokens, sampling)
            torch.testing.assert_close(torch.tensor(completion.logp), expected, atol=1e-4, rtol=0)
            assert all(math.isfinite(value) for value in completion.logp)


def test_greedy_answers_do_not_depend_on_the_seed(engine):
    groups = engine.generate(requests(), Sampling(8, temperature=0))
    assert all(len({c.tokens for c in group}) == 1 for group in groups)


def test_an_answer_ends_with_its_first_end_token_or_at_the_limit(engine):
    for completion in (c for group in engine.generate(requests(6, 6), Sampling(24)) for c in group):
        ends = [i for i, token in enumerate(completion.tokens) if token in engine.eos_ids]
        assert ends in ([], [len(completion.tokens) - 1])
        assert completion.finish == ("stop" if ends else "length")
        assert ends or len(completion.tokens) == 24
        assert len(completion.tokens) == len(completion.logp) == len(completion.action_mask)


@pytest.mark.parametrize("stop", [("</tool>",), ("l", "</think>p")])
def test_the_environment_speaks_where_its_stop_stands_and_nowhere_else(engine, policy, tokenizer, stop):
    sampling, spoken = Sampling(40), 0
    groups = engine.generate(requests(6, 4), sampling, Tool(*stop))
    for request, group in zip(requests(6, 4), groups, strict=True):
        for completion in group:
            mask = torch.tensor(completion.action_mask)
            expected = own_logp(policy, request.tokens, completion.tokens, sampling)
            torch.testing.assert_close(torch.tensor(completion.logp)[mask], expected[mask], atol=1e-4, rtol=0)
            assert all(value == 0 for value, m in zip(completion.logp, completion.action_mask, strict=True) if not m)
            first = completion.action_mask.index(False) if False in completion.action_mask else None
            if first is not None:
                spoken += 1
                text = tokenizer.decode(completion.tokens[:first])
                assert any(s in text for s in stop)
                assert not any(s in tokenizer.decode(completion.tokens[: first - 1]) for s in stop)
            assert completion.info.get("calls", 0) <= 2
    assert spoken >= 3


def test_new_weights_are_sampled_from_at_once(engine, policy):
    before = engine.generate(requests(), Sampling(10))
    with torch.no_grad():
        changed = {name: 1.5 * value for name, value in policy.model.state_dict().items()}
    engine.load(changed)
    after = engine.generate(requests(), Sampling(10))
    assert [[c.tokens for c in g] for g in after] != [[c.tokens for c in g] for g in before]
    engine.load(policy.model.state_dict())
    again = engine.generate(requests(), Sampling(10))
    assert [[c.tokens for c in g] for g in again] == [[c.tokens for c in g] for g in before]


@pytest.mark.parametrize("tokens", [(), (100000,), (9,) * 250])
def test_a_prompt_that_cannot_be_served_is_named(engine, tokens):
    with pytest.raises(ValueError, match="request 1"):
        engine.generate([Request((9,), (1,)), Request(tokens, (1,))], Sampling(10))


def test_a_broken_connection_is_tried_again_and_a_refusal_is_told(policy, tokenizer, monkeypatch):
    monkeypatch.setattr("components.rollout.vllm_engine.sleep", lambda s: None)
    stub = Stub(make_decoder(copy.deepcopy(policy.model)), tokenizer)
    with serving(stub) as url:
        engine = VllmEngine(policy, tokenizer, mode="server", url=url)
        expected = engine.generate(requests(), Sampling(6))
        stub.fail_next = 3
        assert engine.generate(requests(), Sampling(6)) == expected
        with pytest.raises(RuntimeError, match=r"/nothing: HTTP 404.*VLLM_SERVER_DEV_MODE=1"):
            engine.backend._ask("POST", "/nothing", {})
    with pytest.raises(ConnectionError, match="no answer from vLLM"):
        engine.generate(requests(1, 1), Sampling(2))


def test_adapters_are_refused_and_a_missing_vllm_is_told_before_the_run(policy, tokenizer):
    stub = Stub(make_decoder(copy.deepcopy(policy.model)), tokenizer)
    with serving(stub) as url:
        engine = VllmEngine(policy, tokenizer, mode="server", url=url)
        with pytest.raises(ValueError, match="lora=null"):
            engine.load({"layers.0.q_proj.lora_A.default.weight": torch.zeros(1)})
    assert vllm_engine_check({"mode": "server"}) == []
    if find_spec("vllm") is None:
        assert "pip install vllm" in vllm_engine_check({})[0]
