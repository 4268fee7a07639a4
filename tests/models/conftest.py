"""A real tokenizer and a real model, small enough for every test."""

import itertools
import socket

import pytest
import torch

from components.models.tiny import Tiny

LINES = [
    *(f"{a} + {b} = {a + b} so the answer is {a + b}" for a, b in itertools.product(range(12), range(12))),
    *(f"to {verb} a {thing} you need time" for verb in ("make", "fix") for thing in ("bomb", "cake", "chair")),
    "sorry , i can not help with that . it can hurt people",
] * 3


@pytest.fixture(scope="session")
def lines():
    return LINES


@pytest.fixture(scope="session")
def built():
    """(model, tokenizer) of the tiny recipe; tests that train take a copy."""
    return Tiny(hidden_size=32, layers=2, heads=2, kv_heads=1, mlp=64).build(LINES, seed=0)


@pytest.fixture(scope="session")
def tokenizer(built):
    return built[1]


@pytest.fixture
def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def tiny_causal_lm():
    """family, **config -> a small random model; norms and biases are not left at their neutral values."""
    return build


def build(family, *, seed=0, **config):
    import transformers

    settings = {
        "vocab_size": 512,
        "hidden_size": 96,
        "intermediate_size": 288,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
    } | config
    torch.manual_seed(seed)
    model_config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}ForCausalLM")(model_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn(parameter.shape)
    return model
