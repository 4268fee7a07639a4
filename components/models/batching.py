"""Which samples share an update, and which of them share a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from components.models.chat import Encoded
from components.rng import stream


def batches(
    lengths: Sequence[int], batch_size: int, address: tuple[int | str, ...], *, window: int = 8
) -> list[list[int]]:
    """Indices of the samples of each update of one epoch: every sample once, alike lengths together.

    All samples are shuffled, cut into windows of ``window`` batches, sorted by length inside a window, cut into
    batches, and the batches of the epoch shuffled again. Batches are global: a rank takes ``peers.shard(batch)``, so
    the samples of an update do not depend on the number of ranks. One batch of the epoch may be smaller than the
    others, and smaller than the number of ranks.

    Args:
        lengths: tokens of each sample.
        batch_size: samples per update, over all ranks.
        address: where the shuffle is drawn from, epoch included: (seed, stage, epoch).

    Raises:
        ValueError: ``batch_size`` below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    random = stream(*address)
    order = list(range(len(lengths)))
    random.shuffle(order)
    size = batch_size * window
    windows = [sorted(order[i : i + size], key=lambda k: lengths[k]) for i in range(0, len(order), size)]
    cut = [part[i : i + batch_size] for part in windows for i in range(0, len(part), batch_size)]
    random.shuffle(cut)
    return cut


def split_by_tokens(indices: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Micro-batches of one rank's samples, alike lengths together: count · longest ≤ ``max_tokens`` in each.

    A sample longer than that is a micro-batch of its own.
    """
    parts: list[list[int]] = []
    for i in sorted(indices, key=lambda k: lengths[k]):  # ascending: the newest member is the longest
        if not parts or (len(parts[-1]) + 1) * lengths[i] > max_tokens:
            parts.append([])
        parts[-1].append(i)
    return parts


def batches_by_tokens(
    lengths: Sequence[int], max_tokens: int, address: tuple[int | str, ...], *, window: int = 8
) -> list[list[int]]:
    """`batches` of a token budget instead of a number of samples: count · longest ≤ ``max_tokens`` in each update."""
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    windows = batches(lengths, max(1, int(window * max_tokens / mean)), (*address, "windows"), window=1)
    cut = [part for members in windows for part in split_by_tokens(members, lengths, max_tokens)]
    stream(*address).shuffle(cut)
    return cut


def shifted(
    examples: Sequence[Encoded], pad: int
) -> tuple[Int[Tensor, "N T"], Int[Tensor, " N"], Int[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """What a causal model needs to learn from at least one example: inputs, their lengths, targets, trained targets.

    Inputs are right-padded prompts and responses without the last column, targets the same without the first.

    Args:
        pad: any token id.
    """
    width = max(map(len, examples))
    ids = torch.full((len(examples), width), pad, dtype=torch.long)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        start, end = len(example.prompt), len(example)
        ids[row, :end] = torch.tensor([*example.prompt, *example.tokens])
        mask[row, start:end] = torch.tensor(example.mask)
    length = torch.tensor([min(len(example), width - 1) for example in examples])
    return ids[:, :-1], length, ids[:, 1:], mask[:, 1:]
