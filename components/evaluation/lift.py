"""What a change in accuracy is made of: sharpening or new ability, style or skill.

Everything here compares two evaluations of the same prompts, several samples each, on the reasoning prompts both have;
greedy answers (``sample`` -1) stay out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from components.evaluation.intervals import Estimate, mean_estimate, share_estimate
from components.evaluation.metrics import pass_at_k
from components.evaluation.styles import STYLES, styles
from components.evaluation.summary import is_right
from components.rng import derive

Row = Mapping[str, Any]
_DRAWS = 1000


def sampled(rows: Sequence[Row]) -> list[Row]:
    """The samples of reasoning prompts."""
    return [row for row in rows if row["kind"] == "reasoning" and row.get("sample", 0) >= 0]


def _counts(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Prompt → right samples, samples."""
    found: dict[str, list[bool]] = defaultdict(list)
    for row in sampled(rows):
        found[row["task_id"]].append(is_right(row))
    return {task: (sum(right), len(right)) for task, right in found.items()}


def pass_curve(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """pass@k for k = 1, 2, 4, … and the number of samples that every prompt has: {value, low, high, n} by k."""
    counts = _counts(rows)
    samples = min((n for _, n in counts.values()), default=0)
    ks = sorted({*(2**i for i in range(samples.bit_length()) if 2**i <= samples), samples} - {0})
    total = sum(n for _, n in counts.values())
    return {k: share_estimate([pass_at_k(n, c, k) for c, n in counts.values()], total).to_json() for k in ks}


def split_lift(before: Sequence[Row], after: Sequence[Row]) -> dict[str, Any] | None:
    """Split the change in pass@1 by what the model could do before.

    Each prompt adds (after − before)/N to one part, so the parts sum to the change exactly:
    ``new`` – gains on prompts that no sample solved before; ``sharpened`` – gains where some sample did;
    ``lost`` – losses. With few samples a prompt counts as unsolved that more tries would have solved: ``new`` is an
    upper bound that falls with the number of samples.

    Returns:
        ``total``, ``new``, ``sharpened``, ``lost`` → {value, low, high, n} (Student's t over prompts); ``samples`` per
        prompt before; ``newly_solved`` and ``no_longer`` count prompts that went from none right to some, and back.
        None without common prompts.
    """
    old, new = _counts(before), _counts(after)
    common = sorted(old.keys() & new.keys())
    if not common:
        return None
    c_old = np.array([old[task][0] for task in common])
    c_new = np.array([new[task][0] for task in common])
    n_old = np.array([old[task][1] for task in common])
    delta = c_new / np.array([new[task][1] for task in common]) - c_old / n_old
    parts = {
        "total": delta,
        "new": np.where((delta > 0) & (c_old == 0), delta, 0.0),
        "sharpened": np.where((delta > 0) & (c_old > 0), delta, 0.0),
        "lost": np.where(delta < 0, delta, 0.0),
    }
    return {
        **{name: mean_estimate(values.tolist()).to_json() for name, values in parts.items()},
        "samples": int(n_old.min()),
        "newly_solved": int(((c_old == 0) & (c_new > 0)).sum()),
        "no_longer": int(((c_old > 0) & (c_new == 0)).sum()),
        "prompts": len(common),
    }


def style_and_skill(
    before: Sequence[Row], after: Sequence[Row], *, address: tuple[int | str, ...]
) -> dict[str, Any] | None:
    """Split the change in accuracy into how answers are written and how good answers of one style are.

    Within each family, with q the share of a style and a its accuracy (primed: after):
    style = Σ (q' − q)·(a + a')/2, skill = Σ (a' − a)·(q + q')/2; families enter by their number of samples. The two sum
    to the change exactly. The accuracy of a style that one side never shows is taken from the other side, so that a
    style which appears or vanishes counts as style. What lies behind it is association: a style may be right more often
    because the prompts that call for it are easier.

    Args:
        address: seeds the bootstrap over prompts behind the intervals (95 %, percentiles, within families).

    Returns:
        ``total``, ``style``, ``skill`` → {value, low, high, n}; ``table``: rows {style, before, after, right_before,
        right_after} with shares of all samples and accuracy within (None where the style never occurs). None without
        common prompts.

    Source: Kitagawa 1955, "Components of a difference between two rates".
    """
    old, new = sampled(before), sampled(after)
    common = {row["task_id"] for row in old} & {row["task_id"] for row in new}
    if not common:
        return None
    old, new = ([row for row in rows if row["task_id"] in common] for rows in (old, new))
    old_styles, new_styles = styles(old, new)
    counted, family = _by_prompt(old, old_styles, new, new_styles)
    rng = np.random.default_rng(derive(*address, "style"))
    value, draws = np.zeros(2), np.zeros((_DRAWS, 2))
    for name in sorted(set(family)):
        inside = counted[[i for i, f in enumerate(family) if f == name]]  # prompts × (q, right, q', right') × styles
        weight = inside[:, 0].sum() / counted[:, 0].sum()
        value += weight * _kitagawa(inside.sum(0)[None])[0]
        times = rng.multinomial(len(inside), np.full(len(inside), 1 / len(inside)), size=_DRAWS)
        draws += weight * _kitagawa(np.einsum("dp,pks->dks", times, inside))
    both = np.column_stack([draws, draws.sum(1)])
    low, high = np.quantile(both, 0.025, axis=0), np.quantile(both, 0.975, axis=0)
    parts = zip(("style", "skill", "total"), (*value, value.sum()), low, high, strict=True)
    estimates = {name: Estimate(float(v), float(a), float(b), len(family)).to_json() for name, v, a, b in parts}
    return {**estimates, "table": _table(counted.sum(0))}


def _by_prompt(
    old: Sequence[Row], old_styles: Sequence[str], new: Sequence[Row], new_styles: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Counts by prompt, [before, right before, after, right after] and style; and every prompt's family."""
    family = {row["task_id"]: row["family"] for row in new}
    index = {task: i for i, task in enumerate(sorted(family))}
    counted = np.zeros((len(index), 4, len(STYLES)))
    for offset, rows, names in ((0, old, old_styles), (2, new, new_styles)):
        for row, name in zip(rows, names, strict=True):
            at = index[row["task_id"]], offset, STYLES.index(name)
            counted[at] += 1
            counted[at[0], offset + 1, at[2]] += is_right(row)
    return counted, [family[task] for task in index]


def _kitagawa(counted: np.ndarray) -> np.ndarray:
    """(style, skill) of each draw from counts of shape draws × 4 × styles."""
    n, right, n_after, right_after = (counted[:, i] for i in range(4))
    with np.errstate(invalid="ignore", divide="ignore"):
        a, a_after = right / n, right_after / n_after
    a, a_after = np.where(n > 0, a, a_after), np.where(n_after > 0, a_after, a)
    a, a_after = np.nan_to_num(a), np.nan_to_num(a_after)  # a style that neither side shows
    q = n / n.sum(1, keepdims=True)
    q_after = n_after / n_after.sum(1, keepdims=True)
    style = ((q_after - q) * (a + a_after) / 2).sum(1)
    skill = ((a_after - a) * (q + q_after) / 2).sum(1)
    return np.column_stack([style, skill])


def _table(counted: np.ndarray) -> list[dict[str, Any]]:
    n, right, n_after, right_after = counted
    return [
        {
            "style": style,
            "before": float(n[i] / n.sum()),
            "after": float(n_after[i] / n_after.sum()),
            "right_before": float(right[i] / n[i]) if n[i] else None,
            "right_after": float(right_after[i] / n_after[i]) if n_after[i] else None,
        }
        for i, style in enumerate(STYLES)
        if n[i] or n_after[i]
    ]
