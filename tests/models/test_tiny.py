"""The embedded model: a tokenizer that loses nothing, a model that transformers loads as its own."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.models.load import load_model, save_model
from components.models.tiny import ROLES, TAGS, Tiny, train_tokenizer


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_digits_stand_alone_and_tags_are_single_tokens(tokenizer, lines):
    assert pieces(tokenizer, "123 + 45") == ["1", "2", "3", "Ġ+", "Ġ", "4", "5"]
    for tag in (*TAGS, "<pad>", "<|im_start|>", "<|im_end|>"):
        assert pieces(tokenizer, f"a{tag}b") == ["a", tag, "b"]
    assert pieces(tokenizer, "to make a cake") == ["to", "Ġmake", "Ġa", "Ġcake"]  # frequent words are whole
    for role in ROLES:
        assert pieces(tokenizer, f"{role}\n") == [role, "Ċ"]


def test_text_survives_and_unknown_bytes_are_seen(tokenizer):
    text = "Sorry , I can 't ~ help!\n\t<b>{x}</b>".replace("\t", " ")
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert tokenizer.decode(tokenizer("a é b", add_special_tokens=False)["input_ids"]) == "a <unk> b"


def test_bytes_of_the_training_text_are_in_the_alphabet(lines):
    tokenizer = train_tokenizer([*lines, "¿cuánto es?"], 300)
    assert tokenizer.decode(tokenizer("cuánto ¿", add_special_tokens=False)["input_ids"]) == "cuánto ¿"


def test_padding_is_not_the_end_of_a_turn(tokenizer):
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_a_vocabulary_that_cannot_hold_the_alphabet_is_refused(lines):
    with pytest.raises(ValueError, match="vocab_size=50 cannot hold the 12 special tokens"):
        train_tokenizer(lines, 50)
    with pytest.raises(ValueError, match="needs text to learn from"):
        train_tokenizer(["", ""])


def test_tokenizer_and_weights_are_functions_of_lines_and_seed(lines):
    torch.manual_seed(5)
    spec = Tiny(hidden_size=16, layers=1, heads=2, kv_heads=1, mlp=32, vocab_size=200)
    (one, a), (two, b), (three, _) = spec.build(lines, 1), spec.build(iter(lines), 1), spec.build(lines, 2)
    assert a.get_vocab() == b.get_vocab()
    assert all(torch.equal(x, y) for x, y in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.lm_head.weight, three.lm_head.weight)
    assert torch.initial_seed() == 5  # the global stream is left alone


def test_the_default_has_the_stated_shape(lines):
    said: list[str] = []
    model, tokenizer = Tiny().build(lines, 0, say=said.append)
    assert len(tokenizer) <= 576
    assert f"{len(tokenizer)} tokens" in said[0]
    # embeddings + 3 layers × (q, o, k, v, three MLP matrices, two norms) + the last norm
    layer = 2 * 96 * 96 + 2 * 48 * 96 + 3 * 96 * 288 + 2 * 96
    assert sum(p.numel() for p in model.parameters()) == 96 * len(tokenizer) + 3 * layer + 96
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training
    assert model.config._attn_implementation == "sdpa"
    assert 0.045 < model.model.embed_tokens.weight.std() < 0.055


def test_a_saved_model_is_a_plain_hugging_face_model(built, tmp_path):
    model, tokenizer = built
    save_model(model, tokenizer, tmp_path)
    ids = torch.tensor([tokenizer("1 + 2 = 3", add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, expected)
        ours, ours_tokenizer = load_model(tmp_path, "cpu")
        assert torch.equal(ours(ids).logits, expected)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for loaded in (theirs, ours_tokenizer):
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded.chat_template == tokenizer.chat_template
        assert (loaded.pad_token, loaded.eos_token) == ("<pad>", "<|im_end|>")
        assert pieces(loaded, "12<think>a") == pieces(tokenizer, "12<think>a")
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == ["model.safetensors"]
    assert not ours.training
    save_model(ours, ours_tokenizer, tmp_path / "again")
    for file in (tmp_path / "again").iterdir():  # what is loaded and saved is the same, byte for byte
        assert file.read_bytes() == (tmp_path / file.name).read_bytes(), file.name


def test_generation_ends_at_the_end_of_a_turn(built):
    model, tokenizer = built
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 5}, "must be an even multiple of heads=5. Fix: write 100"),
        ({"hidden_size": 7}, "hidden_size: 7 must be an even multiple of heads=4. Fix: write 8"),
        ({"layers": 0}, "layers: must be at least 1"),
        ({"kv_heads": 3}, "heads: 4 must be a multiple of kv_heads=3"),
    ],
)
def test_shapes_that_do_not_divide_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Tiny(**wrong)
