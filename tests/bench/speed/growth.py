"""How the time of a token grows with batch, context and group size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from floor import _least
from subjects import Subject
from timing import Figure

from components.rollout.protocol import Request
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine

NEW = 32


def measure(subject: Subject, repeats: int) -> Iterator[Figure]:
    """Microseconds per token along each axis; judged is the worst step, against growth in proportion."""
    axes = {
        "batch": {n: (n, 16, min(8, n)) for n in (8, 32, 128, 256, 512)},
        "context": {n: (64, n, 8) for n in (16, 64, 256, 768)},
        "group": {n: (128, 64, n) for n in (1, 4, 16, 64)},
    }
    for axis, cases in axes.items():
        times = {n: _us_per_token(subject, *case, repeats) for n, case in cases.items()}
        sizes = list(times)
        # In proportion: a token costs as much in a larger batch or group, and in n-fold context at most n-fold.
        growths = [times[b] / times[a] / (b / a if axis == "context" else 1.0) for a, b in pairwise(sizes)]
        yield Figure(
            f"growth of {subject.name} with {axis}, worst step over proportion",
            max(growths),
            better="lower",
            must=1.25,
            detail={f"us at {n}": round(t, 1) for n, t in times.items()},
        )


def _us_per_token(subject: Subject, batch: int, context: int, group: int, repeats: int) -> float:
    """Fixed lengths; the prompts are computed too, as in a rollout."""
    generator = torch.Generator().manual_seed(context)
    requests = [
        Request(tuple(torch.randint(100, 400, (context,), generator=generator).tolist()), tuple(range(group)))
        for _ in range(batch // group)
    ]
    engine = TorchEngine(subject.decoder, subject.tokenizer, max_batch=batch, eos_ids=())
    spent = _least(lambda: engine.generate(requests, Sampling(NEW)), repeats)
    return 1e6 * spent / (batch // group * group * NEW)
