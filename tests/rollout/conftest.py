import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from components.models.decoder import make_decoder

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool>", "</tool>", "<result>", "</result>"]


@pytest.fixture(scope="session")
def tokenizer():
    """Byte-level BPE of about 300 ids; ``</result>`` is an added token that is not marked special."""
    from transformers import AddedToken, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL[:-1], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(["the tool gives the result of the sum and the product"] * 20, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>")
    wrapped.add_tokens([AddedToken(SPECIAL[-1], special=False, normalized=False)])
    return wrapped


@pytest.fixture(params=["compiled", "plain"])
def either_way_of_decoding(request, monkeypatch):
    """In compiled loops, and as where Numba is missing."""
    threads = torch.get_num_threads()
    if request.param == "compiled":
        pytest.importorskip("numba")
        torch.set_num_threads(1)
    else:
        monkeypatch.setattr("components.models.paged.kernels", lambda: None)
        monkeypatch.setattr("components.rollout.sampling.kernels", lambda: None)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def decoder(tokenizer):
    return small_decoder("Llama", len(tokenizer))


@pytest.fixture(scope="session")
def make_small_decoder():
    return small_decoder


@pytest.fixture(scope="session")
def make_talkative(tokenizer):
    """A random policy that often writes </tool>, and ends its turn the more often the larger ``ends`` is."""

    def make(ends):
        decoder = small_decoder("Llama", len(tokenizer))
        with torch.no_grad():
            for name, strength in (("</tool>", 0.9), ("<|im_end|>", ends)):
                direction = decoder.model.model.embed_tokens.weight.mean(0)
                decoder.head[tokenizer.convert_tokens_to_ids(name)] += strength * direction.sign()
        return decoder

    return make


def small_decoder(family, vocabulary, **config):
    import transformers

    torch.manual_seed(0)
    settings = {
        "vocab_size": vocabulary,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
    } | config
    model_config = getattr(transformers, f"{family}Config")(**settings)
    return make_decoder(getattr(transformers, f"{family}ForCausalLM")(model_config).eval())
