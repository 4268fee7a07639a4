"""Decoding beside transformers' `generate`: same weights, prompts, batch, group, temperature 1, one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import torch
from subjects import Subject
from timing import Figure, rates, ratio, spread

from components.rollout.protocol import Request
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine, end_ids


def measure(subject: Subject, repeats: int) -> Iterator[Figure]:
    """Tokens per CPU-second over `generate`'s: answers that end by themselves, and answers of one length."""
    for batch, group in subject.sizes:
        for kind, must in zip(("natural", "fixed"), subject.must_decode, strict=True):
            # `generate` takes a batch at a time; ours is given two of them, and keeps its batch full.
            count = (2 if subject.small or kind == "natural" else 1) * batch // group
            limit, fixed = (subject.limit, False) if kind == "natural" else (subject.fixed, True)
            prompts = subject.prompts(count)
            ways = {
                "ours": ours(subject, prompts, batch, group, limit, fixed),
                "generate": theirs(subject, prompts, batch, group, limit, fixed),
            }
            found = rates(ways, repeats, warm=subject.small)
            yield Figure(
                f"decode {subject.name}, {kind} lengths, batch {batch}, group {group}",
                ratio(found, "ours", "generate"),
                must=must,
                detail={
                    "tokens_per_s": round(median(found["ours"])),
                    "generate_tokens_per_s": round(median(found["generate"])),
                    "ratios": spread(found, "ours", "generate"),
                },
            )


def ours(
    subject: Subject, prompts: list[list[int]], batch: int, group: int, limit: int, fixed: bool
) -> Callable[[], int]:
    engine = TorchEngine(
        subject.decoder, subject.tokenizer, max_batch=batch, eos_ids=() if fixed else end_ids_of(subject)
    )

    def run() -> int:
        requests = [Request(tuple(p), tuple(range(1000 * i, 1000 * i + group))) for i, p in enumerate(prompts)]
        return sum(len(c.tokens) for group in engine.generate(requests, Sampling(limit)) for c in group)

    return run


def theirs(
    subject: Subject, prompts: list[list[int]], batch: int, group: int, limit: int, fixed: bool
) -> Callable[[], int]:
    ends, pad = torch.tensor(end_ids_of(subject)), subject.tokenizer.pad_token_id

    def one_batch(part: list[list[int]]) -> int:
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        out = subject.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=group,
            max_new_tokens=limit,
            min_new_tokens=limit if fixed else None,
            pad_token_id=pad,
            eos_token_id=ends.tolist(),
        )[:, width:]
        if fixed:
            return out.numel()
        ended = torch.isin(out, ends)
        return int(torch.where(ended.any(1), ended.int().argmax(1) + 1, out.shape[1]).sum())

    def run() -> int:
        size = batch // group
        with torch.inference_mode():
            return sum(one_batch(prompts[i : i + size]) for i in range(0, len(prompts), size))

    return run


def end_ids_of(subject: Subject) -> tuple[int, ...]:
    return end_ids(subject.model, subject.tokenizer)
