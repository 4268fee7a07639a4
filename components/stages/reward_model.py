"""Stage: a Bradley–Terry reward model on preference pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from components.artifacts import read_jsonl, write_json
from components.evaluation.intervals import wilson
from components.losses.preference import bradley_terry
from components.models.chat import encode_examples
from components.models.checkpoint import load_latest, save_checkpoint
from components.models.decoder import make_decoder
from components.models.learner import Learner, batches
from components.models.load import load_model
from components.models.optim import make_optimizer
from components.models.reward_head import RewardModel
from components.models.schedule import cosine
from components.runtime import Inputs, Out
from components.stages.shared import mean
from components.types import Example, Preference


def reward_model(
    inputs: Inputs,
    out: Out,
    *,
    epochs: int = 2,
    batch_size: int = 32,
    lr: float = 1.5e-3,
    weight_decay: float = 0.01,
    checkpoint_every: int = 50,
) -> dict[str, float]:
    """Train s(prompt, response) with -log σ(s_chosen - s_rejected); writes ``model/``, ``head.safetensors``, ``pairs.json``.

    ``accuracy`` is the share of held-out pairs (prompts of no stage) in which the chosen response scores higher, with a
    95 % Wilson interval; ``pairs.json`` has it by family and defect.
    """
    backbone, tokenizer = load_model(inputs["model"].path / "model")
    scorer = RewardModel(backbone, make_decoder(backbone).hidden)
    train = [Preference.from_json(row) for row in read_jsonl(inputs["preferences"].path / "train.jsonl")]
    test = [Preference.from_json(row) for row in read_jsonl(inputs["preferences"].path / "test.jsonl")]
    pairs = _encode(tokenizer, train)
    plan = [
        batch
        for epoch in range(epochs)
        for batch in batches([max(len(a), len(b)) for a, b in pairs], batch_size, (out.seed, out.name, epoch))
    ]
    learner = Learner(
        scorer.named_parameters(),
        optimizer=make_optimizer("adamw", scorer, lr=lr, weight_decay=weight_decay, betas=(0.9, 0.98)),
        schedule=cosine(len(plan), warmup=0.05, floor=0.1),
        peers=out.peers,
    )
    start = 0
    if (saved := load_latest(out)) is not None:
        scorer.load_state_dict(saved.tensors["model"])
        learner.load_state(saved.tensors["learner"], saved.state["learner"])
        start = saved.step
    loss = float("nan")
    for step in range(start, len(plan)):
        chosen = [pairs[i] for i in plan[step]]

        def closure(part: list[Any] = out.peers.shard(chosen), count: int = len(chosen)) -> Tensor:
            scores = scorer([a for a, _ in part] + [b for _, b in part])
            return bradley_terry(scores[: len(part)], scores[len(part) :]).sum() / count

        stats = learner.step([closure])
        if step % 10 == 0 or step == len(plan) - 1:
            loss = out.peers.sum(stats.loss)
            out.log(step + 1, {"loss": loss, "grad_norm": stats.grad_norm})
            out.progress(step + 1, len(plan), loss=loss)
        if (step + 1) % checkpoint_every == 0 and step + 1 < len(plan):
            save_checkpoint(out, step + 1, {"model": scorer.state_dict(), "learner": learner.state()[0]}, {"learner": learner.state()[1]})
            out.raise_if_stopping()
    right = _ranked_right(scorer, _encode(tokenizer, test), out)
    low, high = wilson(sum(right), len(right))
    if out.peers.is_main:
        scorer.save(out.path, tokenizer)
        write_json(out.path / "pairs.json", _by_defect(test, right))
    return {"loss": loss, "accuracy": mean(right), "accuracy_low": low, "accuracy_high": high, "pairs": float(len(train))}


def _encode(tokenizer: Any, pairs: Sequence[Preference]) -> list[tuple[list[int], list[int]]]:
    """Token sequences of prompt + chosen and prompt + rejected."""
    both = [
        Example(pair.task_id, pair.messages, text) for pair in pairs for text in (pair.chosen, pair.rejected)
    ]
    encoded = [[*e.prompt, *e.tokens] for e in encode_examples(tokenizer, both)]
    return list(zip(encoded[::2], encoded[1::2], strict=True))


def _ranked_right(scorer: RewardModel, pairs: Sequence[tuple[list[int], list[int]]], out: Out) -> list[float]:
    mine = out.peers.shard(pairs)
    chosen, rejected = scorer.score([a for a, _ in mine]), scorer.score([b for _, b in mine])
    return out.peers.unshard([float(a > b) for a, b in zip(chosen, rejected, strict=True)])


def _by_defect(pairs: Sequence[Preference], right: Sequence[float]) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = {}
    for pair, ok in zip(pairs, right, strict=True):
        found.setdefault(f"{pair.family}/{pair.defect}", []).append(ok)
    return {name: {"accuracy": mean(values), "n": float(len(values))} for name, values in sorted(found.items())}
