"""Stage: supervised fine-tuning – the cold start, and again on the rejection-sampled data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from components.artifacts import read_jsonl
from components.losses.aggregate import GlobalCounts
from components.losses.sft import nll
from components.models.adapt import load_trainable, save_trained
from components.models.batching import batches, shifted, split_by_tokens
from components.models.chat import Encoded, encode_examples
from components.models.decoder import make_decoder
from components.models.learner import Learner, Loss
from components.models.logprobs import token_logprobs
from components.models.lora import Lora
from components.models.schedule import cosine
from components.rng import derive, stream
from components.runtime import Inputs, Out
from components.stages.train import train
from components.types import Example

TAKES = {"model": "model"}
GIVES = ("model",)


def sft(
    inputs: Inputs,
    out: Out,
    *,
    files: Mapping[str, Sequence[str]],
    optimizer: Callable[..., Any],
    epochs: int = 2,
    batch_size: int = 32,
    lr: float = 2e-3,
    lora: Lora | None = None,
    recompute: bool = False,
    max_examples: int | None = None,
    tokens: int | Callable[[], int] | None = None,
    token_exact: bool = True,
    micro_batch_tokens: int = 16384,
    log_every: int = 20,
    checkpoint_every: int = 100,
) -> dict[str, float]:
    """Train on examples; loss = mean NLL per trained token of the whole batch; writes ``model/``.

    Trained tokens are the response's own: the prompt, the template's prefill and ``<result>…</result>`` are masked.

    Args:
        files: input name → files of examples in it.
        optimizer: ``(named_parameters, lr=…)`` → optimiser.
        batch_size: examples per step, over all processes.
        lora: train low-rank adapters beside frozen weights instead of all weights.
        recompute: activations instead of keeping them, see `load_trainable`.
        max_examples: train on so many of them, drawn at random.
        tokens: train until so many tokens, prompts included, went through the network, instead of for ``epochs``; or
            what says how many.
        token_exact: train on the tokens that were sampled; False tokenises the text again, for a model with another
            tokenizer (distillation).
        micro_batch_tokens: padded tokens per backward pass; does not change results beyond rounding.

    Raises:
        ValueError: no examples.
    """
    source = inputs["model"].path
    network, tokenizer = load_trainable(source, lora, derive(out.seed, out.name), recompute=recompute, say=out.say)
    encoded = encode_examples(tokenizer, _examples(inputs, out, files, max_examples, token_exact))
    lengths = [len(example) for example in encoded]
    budget = tokens() if callable(tokens) else tokens
    plan = list(_plan(lengths, batch_size, (out.seed, out.name), epochs, budget))
    schedule = partial(cosine, total=len(plan), warmup=0.05, floor=0.1)
    learner = Learner(network.named_parameters(), optimizer(network.named_parameters(), lr=lr), schedule, out.peers)
    decoder = make_decoder(network)

    def losses_of_step(step: int) -> list[Loss]:
        trained = sum(sum(encoded[i].mask) for i in plan[step])
        mine, pad = out.peers.shard(plan[step]), tokenizer.pad_token_id
        whole = len(mine) * max((lengths[i] for i in mine), default=0) <= micro_batch_tokens
        parts = [mine] if whole else split_by_tokens(mine, lengths, micro_batch_tokens)
        return [partial(example_loss, decoder, [encoded[i] for i in part], trained, pad) for part in parts]

    loss = train(
        out, network, learner, len(plan), losses_of_step, log_every=log_every, checkpoint_every=checkpoint_every
    )
    if out.peers.is_main:
        save_trained(network, tokenizer, out.path, lora=lora, source=source)
    spent = {"epochs": float(epochs)} if budget is None else {"tokens": float(sum(lengths[i] for p in plan for i in p))}
    return {"loss": loss, "examples": float(len(encoded)), "steps": float(len(plan)), **spent}


def _plan(
    lengths: Sequence[int], batch_size: int, address: tuple[int | str, ...], epochs: int, tokens: int | None
) -> Iterator[list[int]]:
    """Examples of each step: of all epochs, or of as many as it takes to see ``tokens`` tokens."""
    seen = 0
    for epoch in count() if tokens is not None else range(epochs):
        for part in batches(lengths, batch_size, (*address, epoch)):
            if tokens is not None and seen >= tokens:
                return
            seen += sum(lengths[i] for i in part)
            yield part


def _examples(
    inputs: Inputs, out: Out, files: Mapping[str, Sequence[str]], limit: int | None, token_exact: bool
) -> list[Example]:
    examples = [
        Example.from_json(row)
        for source, names in files.items()
        for name in names
        for row in read_jsonl(inputs[source].path / name)
    ]
    if not examples:
        raise ValueError(
            f"{out.name}: no examples in {dict(files)}. Fix: look at why the stage that writes them kept none"
        )
    if limit is not None:
        stream(out.seed, out.name, "examples").shuffle(examples)
        examples = examples[:limit]
    return examples if token_exact else [replace(example, tokens=None, mask=None) for example in examples]


def example_loss(decoder: Any, examples: Sequence[Encoded], tokens: int, pad: int) -> Tensor:
    """Σ -log π(trained tokens) / ``tokens`` of right-padded examples; ``tokens`` counts those of the whole batch."""
    if not examples:  # the last batch of an epoch may have fewer examples than there are processes
        return torch.zeros(())
    ids, length, targets, trained = shifted(examples, pad)
    logp = token_logprobs(decoder.hidden(ids, length)[trained], decoder.head, targets[trained])
    return nll(logp[None], torch.ones_like(logp[None]).bool(), GlobalCounts(len(examples), tokens, 0))


def sft_check(
    settings: Mapping[str, Any], inputs: Mapping[str, str], processes: int, contents: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Whether the files to train on are of inputs that there are, and not known to be empty."""
    files = settings.get("files") or {}
    tokens = settings.get("tokens")
    problems = [f"tokens: must be at least 1 (got {tokens}). Fix: leave it out, epochs then count"] * (
        isinstance(tokens, int) and tokens < 1
    )
    problems += [
        f"files.{name}: no such input. Fix: name one of {', '.join(inputs)}" for name in files if name not in inputs
    ]
    places = [
        (inputs.get(name), file, contents.get(name, {}).get(file)) for name, names in files.items() for file in names
    ]
    if places and all(rows == 0 for _, _, rows in places):
        where = ", ".join(f"{file} of {stage}" for stage, file, _ in places)
        problems.append(
            f"files: there is nothing to train on, the data fill no row of {where}. Fix: give them traces (a column "
            "trace), or take a pipeline that needs none: pipeline=r1_zero"
        )
    return problems


def sft_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns."""
    return ["loss", "examples", "steps", "epochs" if settings.get("tokens") is None else "tokens"]
