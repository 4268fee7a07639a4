"""Whether the shipped model settings fit the GPUs that they name: an estimate from the models' published shapes.

Bytes at the two peaks of an RL stage, in bfloat16: while it samples (weights, the engine's packed copy, keys and values
of a full batch) and while it learns (weights, float32 master, two moments and gradient of what is trained, states kept
for the backward pass, logits of one chunk).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from flows.compose import compose


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool


SHAPES = {  # config.json of each model
    "smollm2_360m": Shape(32, 960, 15, 5, 64, 2560, 49_152, True),
    "qwen3_0_6b": Shape(28, 1024, 16, 8, 128, 3072, 151_936, True),
    "qwen2_5_1_5b": Shape(28, 1536, 12, 2, 128, 8960, 151_936, True),
    "llama3_2_1b": Shape(16, 2048, 32, 8, 64, 8192, 128_256, True),
    "qwen3_4b": Shape(36, 2560, 32, 8, 128, 9728, 151_936, True),
}
OPTIONS = {
    "smollm2_360m": 24,
    "qwen3_0_6b": 24,
    "qwen3_0_6b_80gb": 80,
    "qwen2_5_1_5b": 24,
    "qwen2_5_1_5b_80gb": 80,
    "llama3_2_1b": 24,
    "llama3_2_1b_80gb": 80,
    "qwen3_4b": 24,
    "qwen3_4b_80gb": 80,
}
PROMPT = 512  # tokens, on top of max_new_tokens
ROOM = 0.9  # of the card; the rest is fragments and the CUDA context


def weights(s: Shape) -> tuple[int, int]:
    """(all weights, LoRA weights per unit of rank on all linear layers)."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    linear = [(s.width, q), (s.width, kv), (s.width, kv), (q, s.width), *[(s.width, s.mlp)] * 2, (s.mlp, s.width)]
    body = s.layers * sum(a * b for a, b in linear)
    return body + s.vocabulary * s.width * (1 if s.tied else 2), s.layers * sum(a + b for a, b in linear)


def gigabytes(option: str) -> dict[str, float]:
    model = compose([f"model={option}"]).root["model"]
    s = SHAPES[option.removesuffix("_80gb")]
    total, per_rank = weights(s)
    trained = total if model["lora"] is None else per_rank * model["lora"]["r"]
    tokens = model["max_batch"] * (PROMPT + model["max_new_tokens"])
    cache = tokens * 2 * s.layers * s.kv_heads * s.head_dim * 2
    per_layer = 8 * s.width + 4 * s.heads * s.head_dim + 4 * s.kv_heads * s.head_dim + 4 * s.mlp
    kept = s.layers * s.width + per_layer if model["recompute"] else s.layers * per_layer
    learning = 16 * trained + 2 * model["micro_batch_tokens"] * kept + 3 * 64 * 2**20
    return {"sampling": (4 * total + 16 * trained + cache) / 1e9, "learning": (2 * total + learning) / 1e9}


@pytest.mark.parametrize(("option", "card"), OPTIONS.items())
def test_settings_fit_the_card_they_are_for(option: str, card: int) -> None:
    found = gigabytes(option)
    assert max(found.values()) < ROOM * card, found


@pytest.mark.parametrize("option", [name for name, card in OPTIONS.items() if card == 80])
def test_settings_for_the_larger_card_make_use_of_it(option: str) -> None:
    small = gigabytes(option.removesuffix("_80gb"))
    assert max(gigabytes(option).values()) > 1.5 * max(small.values())


def test_every_model_of_the_conf_is_counted_here() -> None:
    shipped = {file.stem for file in (Path(__file__).parents[2] / "conf" / "model").glob("*.yaml")}
    assert shipped == set(OPTIONS) | {"tiny", "smoke", "pretrained", "adapters", "smollm2_135m"}


def test_the_counted_weights_are_those_of_the_models() -> None:
    published = {
        "smollm2_360m": 0.362,
        "qwen3_0_6b": 0.596,
        "qwen2_5_1_5b": 1.54,
        "llama3_2_1b": 1.24,
        "qwen3_4b": 4.02,
    }
    for name, billions in published.items():
        assert weights(SHAPES[name])[0] / 1e9 == pytest.approx(billions, rel=0.01)
