"""How a model thinks: markers of self-correction, and whether it thinks longer on harder tasks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from components.evaluation.intervals import Estimate, t_quantile
from components.evaluation.metrics import thinking

RECONSIDER = ("wait", "hmm", "actually", "on second thought", "reconsider", "let me rethink", "that's wrong")
CHECK = ("let me check", "double-check", "double check", "let me verify", "verify", "re-check", "recheck", "check:")


def has_marker(response: str, markers: Sequence[str] = RECONSIDER + CHECK) -> bool:
    """Whether the thinking contains one of the markers as whole words."""
    # Everything but letters, digits and the marks that markers use becomes a space: one linear pass, no regex.
    text = "".join(c if c.isalnum() or c in "'-:" else " " for c in thinking(response).lower())
    padded = f" {' '.join(text.split())} "
    return any(f" {marker} " in padded or f" {marker}: " in padded for marker in markers)


def length_slope(rows: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """Tokens of response gained per level of difficulty, within families.

    Ordinary least squares of length on level after subtracting each family's means, so that a family with long
    answers cannot pass for a hard one; standard error clustered by prompt (sandwich), Student's t over prompts.

    Returns:
        None where no family has two levels.
    """
    lengths, level, family = defaultdict(list), {}, {}
    for row in rows:
        lengths[row["task_id"]].append(row["length"])
        level[row["task_id"]], family[row["task_id"]] = row["level"], row["family"]
    prompts = list(lengths)
    if len(prompts) < 3:
        return None
    families = np.unique([family[p] for p in prompts], return_inverse=True)[1]
    x = np.array([float(level[p]) for p in prompts])
    y = np.array([float(np.mean(lengths[p])) for p in prompts])
    for f in np.unique(families):
        inside = families == f
        x[inside] -= x[inside].mean()
        y[inside] -= y[inside].mean()
    spread = float(x @ x)
    if spread == 0:
        return None
    slope = float(x @ y) / spread
    error = math.sqrt(float(np.sum((x * (y - slope * x)) ** 2))) / spread
    half = t_quantile(len(prompts) - 2) * error
    return Estimate(slope, slope - half, slope + half, len(prompts))
