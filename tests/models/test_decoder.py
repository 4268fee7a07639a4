import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from components.models.decoder import make_decoder
from components.models.logprobs import token_logprobs

VARIANTS = {
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "wide heads": ("Qwen3", {"head_dim": 32}),
    "no grouping": ("Llama", {"num_key_value_heads": 4}),
    "mistral full attention": ("Mistral", {"sliding_window": None}),
    "llama 3 frequencies": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}


def ragged(count, longest, seed, vocabulary=512):
    """ids [count, longest] right-padded with zeros, lengths in [1, longest]."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, longest + 1, (count,), generator=generator)
    length[0] = longest
    ids = torch.randint(1, vocabulary, (count, longest), generator=generator)
    return ids * (torch.arange(longest) < length[:, None]), length


@pytest.mark.parametrize("name", VARIANTS)
def test_hidden_and_head_give_the_logits_of_transformers(tiny_causal_lm, name):
    family, config = VARIANTS[name]
    model = tiny_causal_lm(family, **config)
    decoder = make_decoder(model)
    ids, _ = ragged(4, 40, seed=1)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        got = decoder.hidden(ids) @ decoder.head.T
    assert decoder.lean
    # Ten times the norms' ε changes these logits by 9e-3, no rotation by 5.
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_a_shared_prompt_gives_the_log_probabilities_and_gradients_of_a_repeated_one(tiny_causal_lm, family, packed):
    model = tiny_causal_lm(family)
    decoder = make_decoder(model)
    prompts, prompt_len = ragged(3, 12, seed=2)
    ids, length = ragged(7, 9, seed=3)
    group = torch.tensor([0, 0, 1, 2, 2, 2, 1])
    mask = torch.arange(9) < length[:, None]
    weight = torch.randn(int(length.sum()), generator=torch.Generator().manual_seed(4))

    states = decoder.hidden_shared(prompts, prompt_len, ids, group, length if packed else None)
    shared = token_logprobs(states[mask], decoder.head, ids[mask])
    (shared * weight).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}

    model.zero_grad()
    plain = []
    for row in range(7):
        prompt = prompts[group[row], : prompt_len[group[row]]]
        whole = torch.cat([prompt, ids[row, : length[row]]])[None]
        logits = model(input_ids=whole).logits[0, len(prompt) - 1 : -1]
        plain.append(logits.log_softmax(-1).gather(1, whole[0, len(prompt) :, None])[:, 0])
    expected = torch.cat(plain)
    (expected * weight).sum().backward()

    torch.testing.assert_close(shared, expected, atol=1e-5, rtol=1e-5)
    for name, p in model.named_parameters():
        # One padding column left visible changes the log-probabilities above by up to 0.2.
        assert (p.grad - gradients[name]).norm() <= 1e-5 * p.grad.norm(), name


def test_one_token_completions_and_prompts_are_shared_like_any_others(tiny_causal_lm):
    decoder = make_decoder(tiny_causal_lm("Llama"))
    prompt, ids = torch.tensor([[7]]), torch.tensor([[3], [5]])
    states = decoder.hidden_shared(prompt, torch.tensor([1]), ids, torch.tensor([0, 0]))
    torch.testing.assert_close(states, decoder.hidden(prompt).expand(2, 1, -1), atol=1e-5, rtol=0)


def test_padding_on_the_right_changes_neither_states_nor_gradients(tiny_causal_lm):
    model = tiny_causal_lm("Llama")
    decoder = make_decoder(model)
    ids, length = ragged(4, 20, seed=5)
    mask = torch.arange(20) < length[:, None]
    longer = torch.cat([ids, torch.full((4, 9), 400)], 1)
    results = []
    for states in (decoder.hidden(ids), decoder.hidden(longer)[:, :20], decoder.hidden(longer, length)[:, :20]):
        model.zero_grad()
        states[mask].square().sum().backward()
        results.append((states[mask].detach(), [p.grad.clone() for p in model.model.parameters()]))
    for states, gradients in results[1:]:
        torch.testing.assert_close(states, results[0][0], atol=1e-5, rtol=0)
        for gradient, expected in zip(gradients, results[0][1], strict=True):
            assert (gradient - expected).norm() <= 1e-5 * expected.norm()


def test_activation_checkpointing_changes_no_gradient(tiny_causal_lm):
    model = tiny_causal_lm("Llama")
    decoder = make_decoder(model)
    ids, _ = ragged(2, 16, seed=6)
    decoder.hidden(ids).square().sum().backward()
    expected = [p.grad.clone() for p in model.model.parameters()]
    model.zero_grad()
    model.train()
    model.activation_checkpointing_enable()
    decoder.hidden(ids).square().sum().backward()
    for p, gradient in zip(model.model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_steps_on_the_cache_give_the_logits_of_whole_sequences_while_rows_come_and_go(tiny_causal_lm, family):
    model = tiny_causal_lm(family)
    cache = make_decoder(model).new_cache()
    generator = torch.Generator().manual_seed(7)
    rows = []

    def rebuild(keep, prompts, copies):
        nonlocal rows
        cache.rebuild(torch.tensor(keep, dtype=torch.long), prompts, copies)
        rows = [rows[i] for i in keep] + [list(p) for p, n in zip(prompts, copies, strict=True) for _ in range(n)]

    def step(check=True):
        tokens = torch.randint(1, 512, (len(rows),), generator=generator)
        with torch.inference_mode():
            got = cache.step(tokens, torch.tensor([len(row) for row in rows]))
        for row, token, logits in zip(rows, tokens.tolist(), got, strict=True):
            row.append(token)
            if not check:
                continue
            expected = model(input_ids=torch.tensor([row])).logits[0, -1]
            torch.testing.assert_close(logits.clone(), expected, atol=2e-4, rtol=0)

    with torch.no_grad():
        rebuild([], [[5, 6, 7], [], list(range(1, 38))], [2, 1, 3])
        for _ in range(3):
            step()
        rebuild([4, 0], [], [])
        step()
        rebuild([1], [[9] * 50, [8]], [1, 2])
        for i in range(70):  # past the first allocation
            step(check=i % 23 == 0)


def test_weights_changed_in_place_are_seen_at_once(tiny_causal_lm):
    model = tiny_causal_lm("Llama")
    decoder = make_decoder(model)
    ids, _ = ragged(1, 5, seed=8)
    before = decoder.hidden(ids).detach()
    with torch.no_grad():
        for p in model.parameters():
            p.data.mul_(1.1)
    assert (decoder.hidden(ids) - before).abs().max() > 1e-2


@pytest.mark.parametrize("make", ["sliding window", "gpt2"])
def test_other_architectures_go_through_their_own_forward(tiny_causal_lm, make):
    if make == "gpt2":
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=48, n_layer=2, n_head=4, n_positions=64)).eval()
    else:
        model = tiny_causal_lm("Mistral", sliding_window=8)
    decoder = make_decoder(model)
    assert not decoder.lean
    prompts, prompt_len = ragged(2, 6, seed=2)
    ids, length = ragged(3, 5, seed=3)
    group = torch.tensor([1, 0, 0])
    states = decoder.hidden_shared(prompts, prompt_len, ids, group)
    for row in range(3):
        n = int(prompt_len[group[row]])
        whole = torch.cat([prompts[group[row], :n], ids[row, : length[row]]])[None]
        expected = model(input_ids=whole).logits[0, n - 1 : -1]
        torch.testing.assert_close(states[row, : length[row]] @ decoder.head.T, expected, atol=2e-4, rtol=0)


def test_a_model_that_scales_its_logits_is_refused(tiny_causal_lm):
    model = copy.deepcopy(tiny_causal_lm("Llama"))
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits * 0.5)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM.*differ from the model's own logits"):
        make_decoder(model)


def test_low_rank_adapters_are_part_of_the_lean_forward(tiny_causal_lm):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_causal_lm("Llama"), LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.2)
    decoder = make_decoder(model)
    ids, _ = ragged(2, 10, seed=9)
    assert decoder.lean
    torch.testing.assert_close(decoder.hidden(ids) @ decoder.head.T, model(input_ids=ids).logits, atol=2e-4, rtol=0)
    decoder.hidden(ids).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "lora_" in n)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_half_precision_models_are_accepted(tiny_causal_lm, dtype):
    model = tiny_causal_lm("Llama").to(dtype)
    decoder = make_decoder(model)
    ids, length = ragged(2, 6, seed=1)
    states = decoder.hidden_shared(ids, length, ids, torch.tensor([0, 1]))
    assert states.dtype == dtype
    cache = decoder.new_cache()
    cache.rebuild(torch.tensor([], dtype=torch.long), [[1, 2, 3]], [8])
    assert cache.step(torch.full((8,), 4), torch.full((8,), 3)).dtype == torch.float32
