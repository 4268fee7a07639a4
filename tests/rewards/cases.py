"""Tasks and responses as the tests of rewards need them."""

from __future__ import annotations

from typing import Any

from components.types import Message, Rollout, Task


def task(answer: str | None = "42", verifier: str = "math", name: str = "t") -> Task:
    return Task(name, (Message("user", "6 * 7 = ?"),), answer, verifier)


def says(response: str, finish: Any = "stop", tokens: Any = (2,), mask: Any = None, **info: float) -> Rollout:
    tokens = tuple(tokens)
    mask = (True,) * len(tokens) if mask is None else tuple(mask)
    return Rollout("t", (1,), tokens, mask, (0.0,) * len(tokens), response, finish, info=info)


def thinks(thinking: str, answer: str = "42", **more: Any) -> Rollout:
    return says(f"<think>{thinking}</think><answer>{answer}</answer>", **more)
