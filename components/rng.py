"""Randomness by address: every draw is a function of (run seed, stage, step, item), never of a global stream."""

from __future__ import annotations

import hashlib
import random


def derive(*address: int | str) -> int:
    """A 63-bit seed for an address such as ``(seed, "rl_1", step, task.id, sample)``.

    Distinct addresses give independent seeds; the same address gives the same seed in every process and version.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(*address: int | str) -> random.Random:
    """A private generator for one address."""
    return random.Random(derive(*address))
