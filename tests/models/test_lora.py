"""LoRA: what is off is exactly the model before, what is merged is what was trained, no earlier stage is lost."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from components.models.adapt import load_trainable, save_trained
from components.models.decoder import make_decoder
from components.models.load import load_model, save_model
from components.models.logprobs import token_logprobs
from components.models.lora import Lora, load_trained_state, lora_check, merged_state, policy_off, trained_state
from components.models.projections import learns_beside
from components.models.reference import AdaptersOff, FrozenCopy, make_reference

pytest.importorskip("peft")
MERGE, STACK = Lora(r=4, alpha=8), Lora(r=4, alpha=8, between="stack")
IDS = torch.arange(5, 45).view(2, 20)


@pytest.fixture
def stage(tiny_causal_lm, tokenizer, tmp_path):
    """Directory of a stage that ended with a plain model of grouped heads."""
    save_model(tiny_causal_lm("Llama", vocab_size=len(tokenizer)), tokenizer, tmp_path / "sft" / "model")
    return tmp_path / "sft"


def move(model, seed=0):
    """A training step that is larger than any real one."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return model


def logp(decoder):
    hidden = decoder.hidden(IDS[:, :-1])
    return token_logprobs(hidden.flatten(0, 1), decoder.head, IDS[:, 1:].flatten())


def saved_after(stage, lora, seed, to):
    model, tokenizer = load_trainable(stage, lora, seed)
    move(model, seed)
    (stage.parent / to).mkdir()
    save_trained(model, tokenizer, stage.parent / to, lora=lora, source=stage)
    return stage.parent / to, model


def test_with_adapters_off_log_probs_are_the_bases_to_the_bit(stage):
    base = logp(make_decoder(load_model(stage / "model", "cpu")[0]))
    model, _ = load_trainable(stage, MERGE, 1)
    decoder = make_decoder(model)
    reference = make_reference(move(model), decoder)
    assert isinstance(reference, AdaptersOff)
    assert decoder.lean
    assert not torch.allclose(logp(decoder), base, atol=1e-2)
    assert torch.equal(logp(reference.decoder), base)
    with policy_off(model), torch.no_grad():
        assert torch.equal(logp(decoder), base)
    assert not torch.allclose(logp(decoder), base, atol=1e-2)


def test_the_reference_of_full_training_is_a_copy_that_stays(stage):
    model, _ = load_trainable(stage, None, 1)
    reference = make_reference(model, make_decoder(model))
    before = logp(reference.decoder)
    move(model)
    assert isinstance(reference, FrozenCopy)
    assert torch.equal(logp(reference.decoder), before)
    reference.refresh(model)
    torch.testing.assert_close(logp(reference.decoder), logp(make_decoder(model)), rtol=0, atol=0)


def test_gradients_beside_frozen_weights_are_those_of_merged_ones(stage):
    model, _ = load_trainable(stage, MERGE, 1)
    decoder = make_decoder(move(model))
    assert learns_beside([decoder.model.get_decoder().layers[0].self_attn.q_proj])
    beside = logp(decoder)
    beside.sum().backward()
    kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    model.zero_grad()
    for parameter in model.parameters():  # a base that needs gradients takes the other way, merged
        parameter.requires_grad_(True)
    merged = logp(decoder)
    merged.sum().backward()
    torch.testing.assert_close(beside, merged, rtol=0, atol=1e-4)
    for name, gradient in kept.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, gradient, rtol=2e-3, atol=2e-3)


def test_a_merged_model_says_what_the_adapters_said(stage):
    after, model = saved_after(stage, MERGE, 1, "rl")
    said = logp(make_decoder(model))
    plain = load_model(after / "model", "cpu")[0]
    assert not any("lora" in name for name, _ in plain.named_parameters())
    torch.testing.assert_close(logp(make_decoder(plain)), said, rtol=0, atol=1e-4)
    assert sorted(path.name for path in after.iterdir()) == ["adapters", "model"]


def test_adapters_are_kept_in_pefts_own_form(stage, tiny_causal_lm):
    import peft

    after, model = saved_after(stage, MERGE, 1, "rl")
    config = json.loads((after / "adapters" / "000" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, None)
    base = load_model(stage / "model", "cpu")[0]
    other = peft.PeftModel.from_pretrained(base, str(after / "adapters" / "000")).eval()
    with torch.no_grad():
        torch.testing.assert_close(other(IDS).logits, model.eval()(IDS).logits, rtol=0, atol=0)


def test_merged_stages_start_a_new_adapter_on_the_sum(stage):
    sft, model = saved_after(stage, MERGE, 1, "sft_2")
    again, _ = load_trainable(sft, MERGE, 2)
    reference = make_reference(again, make_decoder(again))
    torch.testing.assert_close(logp(reference.decoder), logp(make_decoder(model)), rtol=0, atol=1e-4)
    assert not (sft / "base").exists()


def test_stacked_adapters_of_earlier_stages_stay_in_the_reference(stage):
    sft, first = saved_after(stage, STACK, 1, "sft_2")
    said = logp(make_decoder(first)).detach()
    model, tokenizer = load_trainable(sft, STACK, 2)
    decoder = make_decoder(model)
    reference = make_reference(model, decoder)
    assert {name.split(".lora_A.")[1] for name, _ in model.named_parameters() if ".lora_A." in name} == {
        "default.weight",
        "before-0.weight",
    }
    assert all(".default." in name for name in trained_state(model))
    torch.testing.assert_close(logp(decoder), said, rtol=0, atol=1e-4)  # nothing of the first stage is lost
    move(model, 2)
    torch.testing.assert_close(logp(reference.decoder), said, rtol=0, atol=1e-4)  # nor in the reference
    assert not torch.allclose(logp(decoder), said, atol=1e-2)

    rl = stage.parent / "rl"
    rl.mkdir()
    save_trained(model, tokenizer, rl, lora=STACK, source=sft)
    plain = load_model(rl / "model", "cpu")[0]
    torch.testing.assert_close(logp(make_decoder(plain)), logp(decoder), rtol=0, atol=1e-4)
    assert sorted(path.name for path in (rl / "adapters").iterdir()) == ["000", "001"]
    frozen = load_file(rl / "base" / "model.safetensors")
    assert all(torch.equal(frozen[name], t) for name, t in load_file(stage / "model" / "model.safetensors").items())
    assert (rl / "base" / "model.safetensors").samefile(stage / "model" / "model.safetensors")  # no disk space
    third, _ = load_trainable(rl, STACK, 3)
    torch.testing.assert_close(logp(make_decoder(third)), logp(decoder), rtol=0, atol=1e-4)


def test_a_refreshed_reference_is_the_policy_of_that_moment_and_survives_a_checkpoint(stage):
    model, _ = load_trainable(stage, MERGE, 1)
    decoder = make_decoder(model)
    reference = make_reference(move(model), decoder)
    assert reference.state() == {}
    with torch.no_grad():
        then = logp(decoder)
    reference.refresh(model)
    move(model, 5)
    with torch.no_grad():
        now = logp(decoder)
        assert torch.equal(logp(reference.decoder), then)
        assert torch.equal(logp(decoder), now)  # the policy came back to the bit
    other = make_reference(model, decoder)
    other.load_state(reference.state())
    assert torch.equal(logp(other.decoder), then)


def test_a_checkpoint_holds_the_adapters_alone_and_brings_them_back(stage):
    model, _ = load_trainable(stage, MERGE, 1)
    move(model)
    kept = {name: tensor.clone() for name, tensor in trained_state(model).items()}
    assert kept
    assert all(".lora_" in name for name in kept)
    again, _ = load_trainable(stage, MERGE, 7)
    load_trained_state(again, kept)
    assert torch.equal(logp(make_decoder(again)), logp(make_decoder(model)))
    with pytest.raises(ValueError, match=r"other parameters: .* is only on one side"):
        load_trained_state(again, dict(list(kept.items())[1:]))
    plain, _ = load_trainable(stage, None, 7)
    assert trained_state(plain).keys() == plain.state_dict().keys()


def test_half_precision_takes_adapters_in_every_way(stage, tiny_causal_lm, tokenizer, tmp_path):
    save_model(tiny_causal_lm("Llama", vocab_size=len(tokenizer)).bfloat16(), tokenizer, tmp_path / "half" / "model")
    model, _ = load_trainable(tmp_path / "half", MERGE, 1)
    decoder = make_decoder(move(model))
    assert decoder.head.dtype == torch.bfloat16
    learned = logp(decoder)
    learned.sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(logp(decoder), learned, rtol=0, atol=0.3)  # bf16 has three digits
    cache = decoder.new_cache()
    cache.rebuild(torch.tensor([], dtype=torch.long), [[1, 2, 3]], [8])
    assert cache.step(torch.full((8,), 4), torch.full((8,), 3)).isfinite().all()
    assert merged_state(model)[1]["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("lora", [None, MERGE])
def test_recomputed_activations_give_the_same_gradients(stage, lora):
    gradients = []
    for recompute in (False, True):
        model, _ = load_trainable(stage, lora, 1, recompute=recompute)
        decoder = make_decoder(move(model))
        logp(decoder).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("attention", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (["down_proj"], {"down_proj"}),
        ("all-linear", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_target_modules_by_kind_or_by_name(stage, targets, expected):
    model, _ = load_trainable(stage, Lora(r=2, target_modules=targets), 1)
    assert {
        name.split(".lora_A")[0].rpartition(".")[2] for name, _ in model.named_parameters() if "lora_A" in name
    } == expected


def test_a_layer_that_is_not_there_is_named_with_those_that_are(stage):
    with pytest.raises(ValueError, match=r"no linear layer 'q_prj'. Fix: all-linear, attention, or some of down_proj"):
        load_trainable(stage, Lora(target_modules=["k_proj", "q_prj"]), 1)


def test_settings_that_cannot_work_are_told_before_anything_is_loaded():
    lines = lora_check({"r": 0, "alpha": -1.0, "between": "merge", "quantize": "nf4"})
    assert [line.split(":")[0] for line in lines] == ["r", "alpha", "quantize", "quantize"]
    assert "between=stack" in lines[2]
    assert "r1flow[qlora]" in lines[3]
    assert lora_check({"r": 8, "alpha": 16.0, "between": "merge", "quantize": None}) == []


def test_quantised_weights_without_a_gpu_are_refused(stage):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="needs a CUDA device, this process has cpu"):
        load_trainable(stage, Lora(between="stack", quantize="nf4"), 1)


def test_directories_of_adapters_do_not_name_a_path_of_this_machine(stage):
    after, _ = saved_after(stage, STACK, 1, "rl")
    for file in Path(after).rglob("*.json"):
        assert str(stage.parent) not in file.read_text()
