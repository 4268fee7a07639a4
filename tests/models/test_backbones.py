"""A reward model, and a local judge, on causal language models of several families, made tiny and random."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from components.models.learner import Learner
from components.models.load import save_model
from components.models.optim import AdamW
from components.models.reward_head import RewardModel, hidden_of, load_scorer, load_text_scorer
from components.models.schedule import constant
from components.models.writer import load_writer
from components.types import Message

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
GROUPED = {**SHAPE, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen3, untied": ("Qwen3Config", {**GROUPED, "tie_word_embeddings": False}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}),
    "gemma2, logits capped": ("Gemma2Config", {**GROUPED, "query_pre_attn_scalar": 16, "final_logit_softcapping": 0.1}),
    "phi, head with a bias": ("PhiConfig", {**SHAPE, "max_position_embeddings": 128, "resid_pdrop": 0.0}),
}
CHOSEN, REJECTED = [[5, 6, 7], [5, 8, 7, 11]], [[5, 6, 9], [5, 8, 9, 11]]


def backbone(family: str, tokenizer: Any) -> Any:
    import transformers

    name, settings = FAMILIES[family]
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = getattr(transformers, name)(vocab_size=len(tokenizer), dtype="float32", **ids, **settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if (head := model.get_output_embeddings()).bias is not None:
        nn.init.ones_(head.bias)
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reward_model_learns_a_preference_on_any_backbone_and_is_the_same_once_loaded(
    family: str, tokenizer: Any, tmp_path: Any
) -> None:
    network = backbone(family, tokenizer)
    model = RewardModel(network, hidden_of(network))
    learner = Learner(model.named_parameters(), AdamW(model.named_parameters(), lr=3e-3), partial(constant, total=20))

    def loss() -> torch.Tensor:
        scores = model(CHOSEN + REJECTED)
        return -nn.functional.logsigmoid(scores[:2] - scores[2:]).mean()

    losses = [learner.step([loss]).loss for _ in range(20)]
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)
    assert losses[-1] < 0.3
    scores = model.eval().score(CHOSEN + REJECTED)
    assert min(scores[:2]) > max(scores[2:])
    model.save(tmp_path, tokenizer)
    assert load_scorer(path=tmp_path)(CHOSEN + REJECTED) == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("family", ["gemma2, logits capped", "phi, head with a bias"])
def test_a_backbone_whose_logits_a_decoder_refuses_is_read_by_its_own_forward(family: str, tokenizer: Any) -> None:
    assert hidden_of(backbone(family, tokenizer)) is None


def test_a_reward_model_reads_text_with_its_own_tokenizer(built: Any, tokenizer: Any, tmp_path: Any) -> None:
    model = RewardModel(copy.deepcopy(built[0]))
    nn.init.normal_(model.head.weight)
    model.save(tmp_path, tokenizer, part="answer")
    scorer = load_text_scorer(path=tmp_path)
    messages = (Message("user", "What?"),)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "What?"}], add_generation_prompt=True)
    ids = ids["input_ids"] if hasattr(ids, "keys") else ids
    said = tokenizer("</think><answer>yes</answer>", add_special_tokens=False)["input_ids"]
    [score] = scorer([(messages, "<think></think><answer>yes</answer>")])
    assert score == pytest.approx(model.score([[*ids, *said, tokenizer.eos_token_id]])[0], abs=1e-5)
    assert scorer.part == "answer"


def test_a_local_model_judges_as_an_endpoint_does(built: Any, tokenizer: Any, tmp_path: Any) -> None:
    """A tiny model that has learned by heart to say one verdict."""
    from components.models.chat import encode_examples
    from components.rewards.judge import Judge
    from components.types import Example, Rollout, Task

    task = Task("t", (Message("user", "What?"),), "42", "exact")
    rollouts = [
        Rollout("t", (1,), (2,), (True,), (0.0,), f"<think>x</think><answer>{i}</answer>", "stop") for i in (1, 2, 3)
    ]
    judge = Judge(model=None, rubric="Is it right?")
    prompts = [judge.prompt(task, rollout) for rollout in rollouts]
    replies = ["<think></think>\nVerdict: 10", "<think>?</think>\nVerdict: none", "<think>no idea</think>\nhm"]
    examples = [
        Example("t", (Message("user", prompt or ""),), reply) for prompt, reply in zip(prompts, replies, strict=True)
    ]
    encoded = encode_examples(tokenizer, examples)
    network = copy.deepcopy(built[0])
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(150):
        loss = sum(
            network(
                input_ids=torch.tensor([[*e.prompt, *e.tokens]]),
                labels=torch.tensor([[*[-100] * len(e.prompt), *e.tokens]]),
            ).loss
            for e in encoded
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if float(loss.detach()) < 0.05:
            break
    save_model(network, tokenizer, tmp_path / "model")
    judge = Judge(model=load_writer(path=tmp_path, max_new_tokens=24, batch=2), rubric="Is it right?")
    right, unsure, lost = judge.batch([(task, rollout) for rollout in rollouts])
    assert (right.outcome, right.total) == ("scored", 1.0)
    assert unsure.outcome == "abstained"
    assert lost.outcome == "failed"
    assert "its last line is" in lost.reason
