"""What one prompt's samples are worth: pass@k, maj@k, and the answer a response ends in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement from n, c of them right, is right.

    1 - C(n-c, k) / C(n, k): unbiased for the chance that k fresh samples contain a right one, which resampling with
    replacement understates.

    Raises:
        ValueError: not 0 ≤ c ≤ n, or not 1 ≤ k ≤ n.

    Source: arXiv:2107.03374 eq. 1.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all of k samples drawn without replacement from n, c of them right, are right: C(c, k) / C(n, k).

    Unbiased for the chance that k fresh samples all are: how far one can rely on it, where `pass_at_k` says what it
    can do at all.

    Raises:
        ValueError: not 0 ≤ c ≤ n, or not 1 ≤ k ≤ n.

    Source: pass^k of arXiv:2406.12045 §3.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass^k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return math.comb(c, k) / math.comb(n, k)


def majority(answers: Sequence[str | None], correct: Sequence[float]) -> float:
    """Score of the most frequent answer; tied answers share the vote, so that order cannot decide.

    Args:
        answers: final answer of each sample, None where there is none (it does not vote).
        correct: 0 or 1 per sample. An answer's score is the mean over its samples, since the same answer in a broken
            format may be counted wrong.

    Returns:
        Mean score of the answers with the most votes; 0.0 if no sample has an answer.

    Source: arXiv:2203.11171 (self-consistency), cons@k of arXiv:2501.12948.
    """
    votes: dict[str, list[float]] = defaultdict(list)
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            votes[answer].append(float(right))
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    winners = [sum(scores) / len(scores) for scores in votes.values() if len(scores) == most]
    return sum(winners) / len(winners)


def final_answer(response: str) -> str | None:
    """Text of the last complete ``<answer>…</answer>`` after the thinking, whitespace collapsed; None without one."""
    after = response.rpartition("</think>")[2]
    before_end, closed, _ = after.rpartition("</answer>")
    _, opened, answer = before_end.rpartition("<answer>")
    return " ".join(answer.split()) if closed and opened else None


def thinking(response: str) -> str:
    """Text between ``<think>`` and ``</think>``; everything before ``<answer>`` when the tags are missing."""
    before = response.partition("</think>")[0].partition("<answer>")[0]
    return before.removeprefix("<think>").strip()
