"""Stage: supervised fine-tuning – the cold start, and again on the rejection-sampled data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from components.artifacts import read_jsonl
from components.losses.sft import nll
from components.models.chat import Encoded, encode_examples
from components.models.checkpoint import load_latest, save_checkpoint
from components.models.decoder import make_decoder
from components.models.learner import Learner, batches
from components.models.load import load_model, save_model
from components.models.logprobs import token_logprobs
from components.models.optim import make_optimizer
from components.models.schedule import cosine
from components.runtime import Inputs, Out
from components.types import Example


def sft(
    inputs: Inputs,
    out: Out,
    *,
    files: Mapping[str, Sequence[str]],
    epochs: int = 2,
    batch_size: int = 32,
    lr: float = 2e-3,
    optimizer: str = "muon",
    weight_decay: float = 0.01,
    max_examples: int | None = None,
    checkpoint_every: int = 100,
) -> dict[str, float]:
    """Train on examples; loss = mean NLL per trained token of the whole batch; writes ``model/``.

    Trained tokens are the response's own: the prompt, the template's prefill and ``<result>…</result>`` are masked.

    Args:
        files: input name → files of examples in it.
        batch_size: examples per step, over all processes.
        max_examples: the first so many after a shuffle, to train on less.

    Raises:
        ValueError: no examples.
    """
    network, tokenizer = load_model(inputs["model"].path / "model")
    examples = [
        Example.from_json(row) for name, parts in files.items() for part in parts for row in read_jsonl(inputs[name].path / part)
    ]
    if not examples:
        raise ValueError(f"{out.name}: no examples in {dict(files)}. Fix: the stage that writes them kept none")
    encoded = encode_examples(tokenizer, examples)
    plan = [
        batch
        for epoch in range(epochs)
        for batch in batches([len(e.prompt) + len(e.tokens) for e in encoded], batch_size, (out.seed, out.name, epoch), max_examples)
    ]
    learner = Learner(
        network.named_parameters(),
        optimizer=make_optimizer(optimizer, network, lr=lr, weight_decay=weight_decay, betas=(0.9, 0.98)),
        schedule=cosine(len(plan), warmup=0.05, floor=0.1),
        peers=out.peers,
    )
    decoder = make_decoder(network)
    start = 0
    if (saved := load_latest(out)) is not None:
        network.load_state_dict(saved.tensors["model"])
        learner.load_state(saved.tensors["learner"], saved.state["learner"])
        start = saved.step
    loss = float("nan")
    for step in range(start, len(plan)):
        chosen = [encoded[i] for i in plan[step]]
        tokens = sum(sum(e.mask) for e in chosen)

        def closure(part: list[Encoded] = out.peers.shard(chosen), tokens: int = tokens) -> Tensor:
            return example_loss(decoder, part, tokens, tokenizer.pad_token_id)

        stats = learner.step([closure])
        if step % 20 == 0 or step == len(plan) - 1:
            loss = out.peers.sum(stats.loss)
            out.log(step + 1, {"loss": loss, "lr": stats.lr, "grad_norm": stats.grad_norm})
            out.progress(step + 1, len(plan), loss=loss)
        if (step + 1) % checkpoint_every == 0 and step + 1 < len(plan):
            save_checkpoint(out, step + 1, {"model": network.state_dict(), "learner": learner.state()[0]}, {"learner": learner.state()[1]})
            out.raise_if_stopping()
    if out.peers.is_main:
        save_model(network, tokenizer, out.path / "model")
    return {"loss": loss, "examples": float(len(examples)), "steps": float(len(plan)), "epochs": float(epochs)}


def example_loss(decoder: Any, examples: Sequence[Encoded], tokens: int, pad: int) -> Tensor:
    """Σ -log π(trained tokens) / ``tokens`` of right-padded examples; ``tokens`` counts those of the whole batch."""
    width = max((len(e.prompt) + len(e.tokens) for e in examples), default=1)
    ids = torch.full((len(examples), width), pad, dtype=torch.long)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        start, end = len(example.prompt), len(example.prompt) + len(example.tokens)
        ids[row, :end] = torch.tensor([*example.prompt, *example.tokens])
        mask[row, start:end] = torch.tensor(example.mask)
    trained = mask[:, 1:]
    logp, _ = token_logprobs(decoder.hidden(ids[:, :-1])[trained], decoder.head, ids[:, 1:][trained])
    return nll(logp, torch.ones_like(logp), tokens)
