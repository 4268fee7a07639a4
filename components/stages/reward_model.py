"""Stage: a Bradley–Terry reward model on preference pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from components.losses.preference import bradley_terry
from components.models.adapt import load_trainable
from components.models.batching import batches
from components.models.chat import encode_examples
from components.models.learner import Learner
from components.models.lora import Lora
from components.models.reward_head import RewardModel, hidden_of
from components.models.schedule import cosine
from components.rewards.parts import Part, part_of
from components.rng import derive
from components.runtime import Inputs, Out
from components.stages.pairs import read_pairs, record_ranking
from components.stages.train import train
from components.types import Example, Preference

TAKES = {"model": "model", "preferences": "preferences"}
GIVES = ("reward_model",)


def reward_model(
    inputs: Inputs,
    out: Out,
    *,
    optimizer: Callable[..., Any],
    epochs: int = 2,
    batch_size: int = 32,
    lr: float = 1.5e-3,
    lora: Lora | None = None,
    recompute: bool = False,
    part: Part = "response",
    log_every: int = 10,
    checkpoint_every: int = 50,
) -> dict[str, float]:
    """Train s(prompt, response) with -log σ(s_chosen - s_rejected); writes the model and ``pairs.json``.

    ``accuracy`` is the share of held-out pairs (prompts of no stage) in which the chosen response scores higher, with a
    95 % Wilson interval; ``pairs.json`` has it by family and defect.

    Args:
        part: "response", as safety is judged, or "answer", as helpfulness is: with an empty thought in place of the
             reasoning. Pairs that differ in their reasoning alone are then left out.
        lora: train low-rank adapters and the head beside frozen weights instead of all weights.
        recompute: activations instead of keeping them, see `load_trainable`.
    """
    backbone, tokenizer = load_trainable(
        inputs["model"].path, lora, derive(out.seed, out.name), recompute=recompute, say=out.say
    )
    scorer = RewardModel(backbone, hidden_of(backbone))
    train_pairs, test_pairs = (_only(part, pairs) for pairs in read_pairs(inputs))
    pairs = _encode(tokenizer, train_pairs)
    lengths = [max(len(a), len(b)) for a, b in pairs]
    plan = [part for epoch in range(epochs) for part in batches(lengths, batch_size, (out.seed, out.name, epoch))]
    schedule = partial(cosine, total=len(plan), warmup=0.05, floor=0.1)
    learner = Learner(scorer.named_parameters(), optimizer(scorer.named_parameters(), lr=lr), schedule, out.peers)

    def loss_of_step(step: int) -> Tensor:
        mine = out.peers.shard([pairs[i] for i in plan[step]])
        scores = scorer([a for a, _ in mine] + [b for _, b in mine])
        return bradley_terry(scores[: len(mine)], scores[len(mine) :], pairs=len(plan[step]))[0]

    loss = train(out, scorer, learner, len(plan), loss_of_step, log_every=log_every, checkpoint_every=checkpoint_every)
    right = _ranked_right(scorer, _encode(tokenizer, test_pairs), out)
    if out.peers.is_main:
        scorer.save(out.path, tokenizer, part=part)
    return {"loss": loss, **record_ranking(out, test_pairs, right), "pairs": float(len(pairs))}


def _only(part: Part, pairs: Sequence[Preference]) -> list[Preference]:
    """Pairs with the judged part of each response."""
    cut = [replace(p, chosen=part_of(p.chosen, part), rejected=part_of(p.rejected, part)) for p in pairs]
    return [pair for pair in cut if pair.chosen != pair.rejected]


def _encode(tokenizer: Any, pairs: Sequence[Preference]) -> list[tuple[list[int], list[int]]]:
    """Token sequences of prompt + chosen and prompt + rejected."""
    both = [Example(pair.task_id, pair.messages, text) for pair in pairs for text in (pair.chosen, pair.rejected)]
    encoded = [[*e.prompt, *e.tokens] for e in encode_examples(tokenizer, both)]
    return list(zip(encoded[::2], encoded[1::2], strict=True))


def _ranked_right(scorer: RewardModel, pairs: Sequence[tuple[list[int], list[int]]], out: Out) -> list[float]:
    mine = out.peers.shard(pairs)
    chosen, rejected = scorer.score([a for a, _ in mine]), scorer.score([b for _, b in mine])
    return out.peers.unshard([float(a > b) for a, b in zip(chosen, rejected, strict=True)])


def reward_model_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns."""
    return ["loss", "accuracy", "accuracy_low", "accuracy_high", "pairs"]
