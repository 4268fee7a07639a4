"""Rollouts and metrics in the form an RL stage writes them, made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Write = Callable[[random.Random, float], tuple[str, float, dict[str, float]]]


def rollouts(write: Write, steps: int = 30, prompts: int = 8, group: int = 4, seed: int = 0) -> list[list[Row]]:
    """Rows of every step. ``write(rng, progress)`` gives a response, whether it is right, and other terms."""
    rng = random.Random(seed)
    return [
        [row for prompt in range(prompts) for row in _group(rng, write, step, steps, prompt, group)]
        for step in range(1, steps + 1)
    ]


def _group(rng: random.Random, write: Write, step: int, steps: int, prompt: int, group: int) -> list[Row]:
    rows = []
    for _ in range(group):
        response, right, terms = write(rng, (step - 1) / steps)
        rows.append(
            {
                "step": step,
                "task_id": f"t{step}-{prompt}",
                "family": "sum",
                "level": prompt % 2,
                "kind": "reasoning",
                "prompt": f"{prompt} + {step} = ?",
                "response": response,
                "total": right + sum(terms.values()),
                "outcome": "scored",
                "reason": "",
                "length": len(response.split()),
                "finish": "stop",
                "term.accuracy": right,
                **{f"term.{name}": value for name, value in terms.items()},
            }
        )
    return rows


def metrics(parts: list[list[Row]], **more: Any) -> list[Row]:
    """Rows of ``metrics.jsonl`` that go with these rollouts."""
    return [
        {
            "step": rows[0]["step"],
            "reward": sum(row["total"] for row in rows) / len(rows),
            "accuracy": sum(row["term.accuracy"] for row in rows) / len(rows),
            "truncated": sum(row["finish"] == "length" for row in rows) / len(rows),
            "signal": 0.8,
            **more,
        }
        for rows in parts
    ]
