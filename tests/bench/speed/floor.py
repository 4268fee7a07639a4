"""How far decoding and training are from what the machine's own products take, and where the rest goes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import torch
from decode import ours
from subjects import Subject
from timing import Figure
from torch import Tensor

from components.compiled import kernels
from components.models.decoder import Decoder
from components.models.logprobs import token_logprobs
from components.models.products import product

BATCH, GROUP = 256, 8
_KINDS = {
    "weights": ("aten::mm", "aten::addmm", "mkldnn::"),
    "attention": ("attend", "bmm", "softmax", "scaled_dot_product"),
    "copies": ("copy_", "cat", "index", "fill_", "gather", "scatter"),
}


def measure(subject: Subject, repeats: int) -> Iterator[Figure]:
    """Share of the floor – the products with the weights, at the speed they run alone – for decoding and training."""
    run = ours(subject, subject.prompts(BATCH // GROUP), BATCH, GROUP, subject.fixed, True)
    tokens = run()
    floor = _products(subject, BATCH, training=False) / BATCH
    spent = _least(run, repeats) / tokens
    shares = _profile(run)
    yield Figure(
        f"share of the floor, decoding {subject.name}, batch {BATCH}",
        floor / spent,
        "",
        must=None,
        detail={
            "us_per_token": round(1e6 * spent, 2),
            "floor_us": round(1e6 * floor, 2),
            "gflops": round(_flops(subject) / floor / 1e9, 1),
            "read_gb_per_s": round(bandwidth(), 1),
            **shares,
        },
    )
    rows, width = (256, 40) if subject.small else (16, 96)
    ids = torch.randint(100, 400, (rows, width + 1), generator=torch.Generator().manual_seed(0))
    step = partial(_train, subject.decoder, ids)
    step()
    tokens = rows * width
    floor, spent = _products(subject, tokens, training=True) / tokens, _least(step, repeats) / tokens
    yield Figure(
        f"share of the floor, training {subject.name}, {tokens} tokens",
        floor / spent,
        "",
        detail={"us_per_token": round(1e6 * spent, 2), "floor_us": round(1e6 * floor, 2), **_profile(step)},
    )


def _train(decoder: Decoder, ids: Tensor) -> None:
    decoder.model.requires_grad_(True)
    hidden = decoder.hidden(ids[:, :-1])
    (-token_logprobs(hidden.flatten(0, 1), decoder.head, ids[:, 1:].flatten()).mean()).backward()
    decoder.model.zero_grad()
    decoder.model.requires_grad_(False)


def _matrices(subject: Subject) -> list[Tensor]:
    inner = [p for name, p in subject.model.named_parameters() if p.ndim == 2 and "embed" not in name]
    head = subject.decoder.head
    return [p.detach() for p in inner if p is not head] + [head.detach()]


def _flops(subject: Subject) -> float:
    return 2.0 * sum(w.numel() for w in _matrices(subject))


def _products(subject: Subject, rows: int, *, training: bool) -> float:
    """CPU-seconds of one pass over all weights for so many tokens: W·x, and in training Wᵀ·g and g·xᵀ."""
    total = 0.0
    for shape, count in Counter(tuple(w.shape) for w in _matrices(subject)).items():
        w, x, g = torch.randn(shape), torch.randn(rows, shape[1]), torch.randn(rows, shape[0])
        passes: list[Callable[[], Any]] = [partial(product(w), x)]
        if training:
            passes = [lambda w=w, x=x: x @ w.T, lambda w=w, g=g: g @ w, lambda x=x, g=g: g.T @ x]
        total += count * sum(_least(p, 7) for p in passes)
    return total


def bandwidth() -> float:
    """GB/s of reading memory that no cache holds, one thread."""
    x = torch.ones(32 << 20)
    return x.numel() * 4 / _least(x.sum, 5) / 1e9


def _least(run: Callable[[], Any], repeats: int) -> float:
    run()
    spent = []
    for _ in range(repeats):
        began = process_time()
        run()
        spent.append(process_time() - began)
    return min(spent)


def _profile(run: Callable[[], Any]) -> dict[str, float]:
    """Share of the operators' own time by kind, in per cent."""
    from torch.profiler import ProfilerActivity, profile

    with _loops_named(), profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    shares: dict[str, float] = {}
    for event in events:
        named = (kind for kind, parts in _KINDS.items() if any(part in event.key for part in parts))
        kind = next(named, "small operations")
        shares[kind] = shares.get(kind, 0.0) + 100 * event.self_cpu_time_total / total
    return {f"{kind}_%": round(share) for kind, share in sorted(shares.items())}


@contextlib.contextmanager
def _loops_named() -> Iterator[None]:
    """Make the profiler see the compiled loops, which are no operators."""
    from torch.profiler import record_function

    loops = kernels()
    names = ("normalise", "gated", "attend", "place", "sample") if loops is not None else ()
    own = {name: getattr(loops, name) for name in names}

    def named(name: str) -> Callable[..., None]:
        def call(*given: Any) -> None:
            with record_function(name):
                own[name](*given)

        return call

    for name in names:
        setattr(loops, name, named(name))
    yield
    for name in names:
        setattr(loops, name, own[name])
