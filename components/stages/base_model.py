"""Stage: the base model – an existing one, or the tiny one pretrained on the domain's plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from components.losses.aggregate import GlobalCounts
from components.losses.sft import nll
from components.models.decoder import make_decoder
from components.models.learner import Learner
from components.models.load import save_model
from components.models.logprobs import token_logprobs
from components.models.schedule import cosine
from components.runtime import Inputs, Out
from components.stages.train import train

TAKES = {"data": "data?"}
GIVES = ("model",)
PRETRAINED_HERE = ("components.models.tiny.Tiny",)


def base_model(
    inputs: Inputs,
    out: Out,
    *,
    model: Any,
    optimizer: Callable[..., Any],
    steps: int = 2000,
    batch_size: int = 20,
    context: int = 64,
    lr: float = 4e-3,
    log_every: int = 25,
    checkpoint_every: int = 100,
) -> dict[str, float]:
    """Write ``model/``: the policy's starting point and the reference of R1's second SFT.

    A source that needs pretraining (the tiny model) is trained on ``pretrain.txt`` of the curated data, in its order,
    packed into rows of ``context`` + 1 tokens and gone through again where it is short; any other source is loaded and
    written as it is.

    Args:
        model: a source with ``build(lines, seed, say=…) -> (model, tokenizer)`` and ``needs_pretraining``.
        optimizer: ``(named_parameters, lr=…)`` → optimiser.
        batch_size: rows per step, over all processes.

    Raises:
        ValueError: no text to pretrain on, or not even one batch of it.
    """
    lines = (inputs["data"].path / "pretrain.txt").read_text().splitlines() if model.needs_pretraining else []
    if model.needs_pretraining and not lines:
        raise ValueError(
            f"{out.name}: this data has no text to pretrain a model on. Fix: start from one that is pretrained, "
            "model=pretrained model.source.path=…"
        )
    network, tokenizer = model.build(lines, out.seed, say=out.say)
    metrics = {"parameters": float(sum(p.numel() for p in network.parameters()))}
    if model.needs_pretraining:
        rows = pack(tokenizer, lines, context + 1)
        if len(rows) < batch_size:
            raise ValueError(
                f"{out.name}: pretrain.txt packs into {len(rows)} rows of {context + 1} tokens, less than a batch of "
                f"{batch_size}. Fix: lower {out.name}.batch_size or write more lines in data"
            )
        if len(rows) < steps * batch_size:
            out.say(f"the text is gone through {steps * batch_size / len(rows):.1f} times")
        schedule = partial(cosine, total=steps, warmup=0.05, floor=0.1)
        learner = Learner(network.named_parameters(), optimizer(network.named_parameters(), lr=lr), schedule, out.peers)
        decoder = make_decoder(network)

        def loss_of_step(step: int) -> Tensor:
            batch = rows[torch.arange(step * batch_size, (step + 1) * batch_size) % len(rows)]
            ids = batch[out.peers.rank :: out.peers.world_size]
            if not len(ids):  # fewer rows than processes
                return torch.zeros(())
            logp = token_logprobs(decoder.hidden(ids[:, :-1]).flatten(0, 1), decoder.head, ids[:, 1:].flatten())
            return nll(
                logp[None], torch.ones_like(logp[None]).bool(), GlobalCounts(len(batch), batch[:, 1:].numel(), 0)
            )

        metrics["loss"] = train(
            out, network, learner, steps, loss_of_step, log_every=log_every, checkpoint_every=checkpoint_every
        )
    if out.peers.is_main:
        save_model(network, tokenizer, out.path / "model")
    return metrics


def pack(tokenizer: Any, lines: list[str], width: int) -> Int[Tensor, "R width"]:
    """Token stream of the lines, newline-terminated, cut into rows of ``width``."""

    def stream() -> Iterator[list[int]]:
        for start in range(0, len(lines), 2000):
            part = [line + "\n" for line in lines[start : start + 2000]]
            yield from tokenizer(part, add_special_tokens=False)["input_ids"]

    tokens = torch.tensor([token for ids in stream() for token in ids], dtype=torch.int32)
    return tokens[: len(tokens) // width * width].view(-1, width).long()


def base_model_check(
    settings: Mapping[str, Any], inputs: Mapping[str, str], processes: int, contents: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Whether there is text for a model that has to be pretrained."""
    source = settings["model"].get("_target_") if isinstance(settings["model"], Mapping) else None
    if source not in PRETRAINED_HERE:
        return []
    if "data" not in inputs:
        return [
            "inputs.data: is missing: this model has to be pretrained on text. Fix: name the stage that curates data"
        ]
    held = contents.get("data", {})
    if held.get("pretrain.txt") != 0 and (size := held.get("pretrain.txt/bytes")) is not None:
        most = size // (settings["context"] + 1)  # a token is a byte at least
        if most < settings["batch_size"]:
            return [
                f"batch_size: {settings['batch_size']} rows of {settings['context'] + 1} tokens are more than the "
                f"{size:,} bytes of text in the data can fill. Fix: give more rows, or lower batch_size or context"
            ]
    if held.get("pretrain.txt") == 0:
        return [
            "model: the data have no text to pretrain it on. Fix: model=pretrained model.source.path=DIR_OR_HUB_NAME"
        ]
    return []


def base_model_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns; a loss only of a model that is pretrained here."""
    source = settings["model"].get("_target_") if isinstance(settings["model"], Mapping) else None
    return ["parameters", *(["loss"] if source in PRETRAINED_HERE else [])]
