"""The engine that samples and the trainer give the same tokens different probabilities."""

from __future__ import annotations

from statistics import fmean

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import RECENT, Record

GAP, GAP_KL = 0.05, 0.01  # nats per token
CORRECTED = 10.0  # with a correction, this many times as much is borne


def mismatch(record: Record) -> Finding | None:
    """Mean |log π_trainer − log π_engine| of at least 0.05 nats a token, or a KL of at least 0.01, over five steps.

    The same weights in the same precision give about 1e-6, bf16 kernels about 0.01.
    """
    gap, kl = record.last("gap"), record.last("gap_kl")
    if not gap or not kl:
        return None
    corrected = bool((record.settings.get("algorithm") or {}).get("mismatch"))
    borne = CORRECTED if corrected else 1.0
    if fmean(gap) < borne * GAP and fmean(kl) < borne * GAP_KL:
        return None
    worst = max(record.last("gap_max") or [0.0])
    remedy = (
        "the correction has more to do than it can: "
        if corrected
        else "set algorithm.mismatch={_target_: components.losses.mismatch.tis, _partial_: true}, and find the cause: "
    ) + (
        f"temperature ({record.settings.get('temperature', 'default')}) and top-p/top-k must be the same on both "
        "sides, weights must reach the engine after every update, dtypes should agree."
    )
    return record.finding(
        "logprob_mismatch",
        f"engine and trainer differ by {fmean(gap):.3f} nats a token (KL {fmean(kl):.4f}, at most {worst:.2f}) over "
        f"the last {RECENT} steps{', corrected' if corrected else ', uncorrected'}.",
        remedy,
        severity="error" if fmean(gap) >= 10 * borne * GAP else "warning",
        gap=fmean(gap),
        gap_kl=fmean(kl),
        gap_max=worst,
    )
