"""Stage: the base model – an existing one, or the tiny one pretrained on the domain's plain text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from components.losses.sft import nll
from components.models.checkpoint import load_latest, save_checkpoint
from components.models.decoder import make_decoder
from components.models.learner import Learner
from components.models.load import save_model
from components.models.logprobs import token_logprobs
from components.models.optim import make_optimizer
from components.models.schedule import cosine
from components.runtime import Inputs, Out


def base_model(
    inputs: Inputs,
    out: Out,
    *,
    model: Any,
    steps: int = 1000,
    batch_size: int = 20,
    context: int = 64,
    lr: float = 4e-3,
    optimizer: str = "muon",
    weight_decay: float = 0.01,
    checkpoint_every: int = 100,
) -> dict[str, float]:
    """Write ``model/``: the policy's starting point and the reference of R1's second SFT.

    A source that needs pretraining (the tiny model) is trained on ``pretrain.txt`` of the curated data, in its order,
    packed into rows of ``context`` + 1 tokens; any other source is loaded and written as it is.

    Args:
        model: a source with ``build(lines, seed) -> (model, tokenizer)`` and ``needs_pretraining``.
        batch_size: rows per step, over all processes.
    """
    lines = (inputs["data"].path / "pretrain.txt").read_text().splitlines() if model.needs_pretraining else []
    network, tokenizer = model.build(lines, out.seed)
    metrics: dict[str, float] = {"parameters": float(sum(p.numel() for p in network.parameters()))}
    if model.needs_pretraining:
        learner = Learner(
            network.named_parameters(),
            optimizer=make_optimizer(optimizer, network, lr=lr, weight_decay=weight_decay, betas=(0.9, 0.98)),
            schedule=cosine(steps, warmup=0.05, floor=0.1),
            peers=out.peers,
        )
        rows = pack(tokenizer, lines, context + 1)
        if len(rows) < steps * batch_size:
            raise ValueError(
                f"base: pretrain.txt packs into {len(rows)} rows of {context + 1} tokens, {steps} steps × {batch_size} rows "
                f"need {steps * batch_size}. Fix: lower base.steps or raise the number of lines in data"
            )
        metrics |= _pretrain(out, network, learner, rows, steps, batch_size, checkpoint_every)
    if out.peers.is_main:
        save_model(network, tokenizer, out.path / "model")
    return metrics


def _pretrain(
    out: Out, network: Any, learner: Learner, rows: Int[Tensor, "R T"], steps: int, batch_size: int, checkpoint_every: int
) -> dict[str, float]:
    decoder = make_decoder(network)
    start = 0
    if (saved := load_latest(out)) is not None:
        network.load_state_dict(saved.tensors["model"])
        learner.load_state(saved.tensors["learner"], saved.state["learner"])
        start = saved.step
    loss = float("nan")
    for step in range(start, steps):
        batch = rows[step * batch_size : (step + 1) * batch_size]
        mine = batch[out.peers.rank :: out.peers.world_size]

        def closure(ids: Tensor = mine, tokens: int = batch_size * (rows.shape[1] - 1)) -> Tensor:
            logp, _ = token_logprobs(decoder.hidden(ids[:, :-1]).flatten(0, 1), decoder.head, ids[:, 1:].flatten())
            return nll(logp, torch.ones_like(logp), tokens)

        stats = learner.step([closure])
        loss = out.peers.sum(stats.loss) if step % 25 == 0 or step == steps - 1 else loss
        if step % 25 == 0 or step == steps - 1:
            out.log(step + 1, {"loss": loss, "lr": stats.lr, "grad_norm": stats.grad_norm})
            out.progress(step + 1, steps, loss=loss)
        if (step + 1) % checkpoint_every == 0 and step + 1 < steps:
            save_checkpoint(out, step + 1, {"model": network.state_dict(), "learner": learner.state()[0]}, {"learner": learner.state()[1]})
            out.raise_if_stopping()
    return {"loss": loss, "steps": float(steps), "tokens": float(steps * batch_size * (rows.shape[1] - 1))}


def pack(tokenizer: Any, lines: list[str], width: int) -> Int[Tensor, "R width"]:
    """Token stream of the lines, newline-terminated, cut into rows of ``width``."""

    def stream() -> Iterator[list[int]]:
        for start in range(0, len(lines), 2000):
            part = [line + "\n" for line in lines[start : start + 2000]]
            yield from tokenizer(part, add_special_tokens=False)["input_ids"]

    tokens = torch.tensor([token for ids in stream() for token in ids], dtype=torch.int32)
    return tokens[: len(tokens) // width * width].view(-1, width).long()
