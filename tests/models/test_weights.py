"""What the headers of safetensors files tell, and the lists that stand in for transformers' own."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from components.models.directory import attention_problem, causal_types, is_hub_name, render, template_problem
from components.models.load import save_model
from components.models.weights import LLAMA_LAYERS, expected_shapes, linear_names, read_header, read_shapes

KINDS = ["llama", "mistral", "qwen2", "qwen3"]
SMALL = {
    **{"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24},
    **{"num_hidden_layers": 2, "vocab_size": 20, "tie_word_embeddings": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_shapes_asked_for_are_those_that_transformers_builds(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL))
    built = {name.removeprefix("model."): list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert expected_shapes({"model_type": kind, **SMALL}) == built


def test_the_head_of_a_tied_model_and_other_families_are_not_asked_for():
    assert "lm_head.weight" not in expected_shapes({"model_type": "llama", **SMALL, "tie_word_embeddings": True})
    assert expected_shapes({"model_type": "gpt2", **SMALL}) == {}


def test_a_saved_model_holds_the_layers_that_adapters_may_name(built, tmp_path):
    save_model(built[0], built[1], tmp_path)
    shapes = read_shapes(tmp_path)
    assert shapes["model.norm.weight"] == [built[0].config.hidden_size]
    assert linear_names(shapes) == set(LLAMA_LAYERS)


def test_experts_stored_one_by_one_say_nothing_of_the_layers_there_will_be():
    assert linear_names({"model.layers.0.mlp.experts.0.up_proj.weight": [2, 2]}) is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"short", "cut off in its header"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        ((9).to_bytes(8, "little") + b"[1, 2, 3]", "its header is none of a safetensors file"),
        ((2).to_bytes(8, "little") + b"{}" + b"more", "has 14 bytes, its header speaks of 10"),
    ],
)
def test_what_is_no_safetensors_file_is_told_with_a_remedy(tmp_path, content, told):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=rf"model.safetensors: .*{told}.* Fix: "):
        read_header(tmp_path / "model.safetensors")


def test_files_of_an_index_are_read_together_and_must_hold_what_it_names(tmp_path):
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "1.safetensors")
    save_file({"b": torch.zeros(4)}, tmp_path / "2.safetensors")
    placed = {"a": "1.safetensors", "b": "2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": placed}))
    assert read_shapes(tmp_path) == {"a": [2, 3], "b": [4]}
    index.write_text(json.dumps({"weight_map": {**placed, "c": "1.safetensors"}}))
    with pytest.raises(ValueError, match="names tensor c, which its file does not hold"):
        read_shapes(tmp_path)
    index.unlink()
    with pytest.raises(ValueError, match=r"neither model.safetensors nor .* \(safetensors there: 1.safetensors"):
        read_shapes(tmp_path)


def test_the_types_read_from_the_source_are_those_of_transformers():
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert set(causal_types()) == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_the_attentions_known_are_those_of_transformers():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = [name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if not name.startswith("paged|")]
    assert [attention_problem(name) for name in (*plain, "eager", "kernels-community/flash-attn")] == [None] * (
        len(plain) + 2
    )


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("gpt2", True), ("Qwen/Qwen2.5-1.5B", True), ("not a model!", False), ("a--b/c", False), ("a/b/c", False)],
)
def test_names_that_the_hub_could_have(name, is_one):
    assert is_hub_name(name) is is_one


def test_a_template_is_rendered_as_transformers_renders_it(built):
    marked = (
        "{% for m in messages %}{%- if loop.last %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}"
        "{%- endif %}{{ strftime_now('%Y') | length }}{% endfor %}"
    )
    turns = [{"role": "user", "content": "é <b>"}]
    tokenizer = built[1]
    wanted = tokenizer.apply_chat_template(turns, chat_template=marked, tokenize=False)
    assert render(marked, turns) == wanted == '{"role": "user", "content": "é <b>"}'


def test_a_template_in_the_tokenizers_settings_is_looked_at_too(tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages "}))
    assert "tokenizer_config.json: the chat template is no Jinja" in str(template_problem(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert template_problem(tmp_path) is None
