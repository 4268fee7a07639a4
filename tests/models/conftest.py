"""A real tokenizer and a real model, small enough for every test."""

import itertools
import socket

import pytest

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
