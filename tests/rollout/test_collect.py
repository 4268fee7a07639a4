import copy
from types import SimpleNamespace

import pytest
import torch

from components.environments.calculator import Calculator
from components.rng import derive
from components.rollout.collect import collect
from components.rollout.protocol import Completion, Request
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine
from components.types import Message, Task

SAMPLING = Sampling(12)


def render(tokenizer, messages):
    text = f"<|im_start|>{messages[-1].content}<think>"
    return SimpleNamespace(tokens=tokenizer(text, add_special_tokens=False)["input_ids"], prefill="<think>")


def tasks(*names):
    return [Task(name, (Message("user", f"the sum of {name}"),), None, "exact") for name in names]


def test_seeds_come_from_the_address_the_task_and_the_sample(decoder, tokenizer):
    engine = TorchEngine(decoder, tokenizer)
    (group,) = collect(engine, tokenizer, render, tasks("a"), 3, SAMPLING, address=(0, "rl_1", 7))
    prompt = render(tokenizer, tasks("a")[0].messages).tokens
    request = Request(tuple(prompt), tuple(derive(0, "rl_1", 7, "a", i) for i in range(3)))
    (expected,) = engine.generate([request], SAMPLING)
    assert [r.tokens for r in group] == [c.tokens for c in expected]
    assert len({r.tokens for r in group}) == 3


def test_a_tasks_rollouts_do_not_depend_on_the_other_tasks(decoder, tokenizer):
    engine = TorchEngine(decoder, tokenizer)
    both = collect(engine, tokenizer, render, tasks("a", "b"), 2, SAMPLING, address=(0, "rl_1", 7), policy_version=5)
    alone = collect(engine, tokenizer, render, tasks("b"), 2, SAMPLING, address=(0, "rl_1", 7), policy_version=5)
    assert both[1] == alone[0]
    assert [[r.task_id for r in group] for group in both] == [["a", "a"], ["b", "b"]]
    assert all(r.policy_version == 5 for group in both for r in group)
    other = collect(engine, tokenizer, render, tasks("b"), 2, SAMPLING, address=(0, "rl_1", 8))
    assert [r.tokens for r in other[0]] != [r.tokens for r in alone[0]]


def test_logits_that_are_no_numbers_are_an_error_not_a_token(either_way_of_decoding, decoder, tokenizer):
    broken = copy.deepcopy(decoder)
    with torch.no_grad():
        broken.head[7] = float("nan")
    engine = TorchEngine(broken, tokenizer)
    with pytest.raises(FloatingPointError, match=r"NaN\) at token 0 of its answer to task a. Fix: .*float32"):
        collect(engine, tokenizer, render, tasks("a"), 2, SAMPLING, address=(0,))


class Canned:
    """An engine that always says the same."""

    def __init__(self, *completions):
        self.completions = list(completions)

    def generate(self, prompts, sampling, environment=None):
        return [self.completions for _ in prompts]


@pytest.mark.parametrize(
    ("text", "finish", "response"),
    [
        ("2</think>7<|im_end|>", "stop", "<think>2</think>7"),
        ("2<tool>1+1</tool>", "stop", "<think>2<tool>1+1</tool>"),
        ("2</think><|im_end|>", "length", "<think>2</think><|im_end|>"),
        ("", "failed", "<think>"),
    ],
)
def test_the_response_is_prefill_and_text_without_the_end_of_turn(tokenizer, text, finish, response):
    tokens = tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()
    canned = Completion(tokens, (True,) * len(tokens), (-1.0,) * len(tokens), finish, {"tool_calls": 1.0})
    ((rollout,),) = collect(Canned(canned), tokenizer, render, tasks("a"), 1, SAMPLING, Calculator(), address=(0,))
    assert rollout.response == response
    assert rollout.tokens == tokens
    assert rollout.finish == finish
    assert rollout.info == {"tool_calls": 1.0}


def test_fewer_than_one_sample_is_refused(decoder, tokenizer):
    with pytest.raises(ValueError, match="got 0"):
        collect(TorchEngine(decoder, tokenizer), tokenizer, render, tasks("a"), 0, SAMPLING, address=(0,))
