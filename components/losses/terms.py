"""What an algorithm adds to the policy loss, and the KL penalty it takes off the reward."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from components.losses.aggregate import GlobalCounts
from components.losses.kl import k1, k3
from components.losses.surrogate import importance

if TYPE_CHECKING:
    from components.losses.policy import Algorithm


def reward_penalty(
    algorithm: "Algorithm", mask: Tensor | None, logp: Tensor | None, ref_logp: Tensor | None, beta: float
) -> Tensor | None:
    """β·k1 per token [N, T], 0 where masked, if the KL is paid in the reward; else None."""
    if algorithm.kl is None or algorithm.kl.place != "reward" or beta == 0:
        return None
    if mask is None or logp is None or ref_logp is None:
        raise ValueError("advantages: the KL is paid in the reward, so mask, logp and ref_logp must be given")
    return beta * torch.where(mask.bool(), k1(logp.detach(), ref_logp.detach()), 0.0)


def further_terms(
    algorithm: "Algorithm",
    logp: Tensor,
    mask: Tensor,
    counts: GlobalCounts,
    seen: dict[str, Tensor],
    *,
    beta: float,
    log_ratio: Tensor,
    ref_logp: Tensor | None,
    entropy: Tensor | None,
    positive: Tensor | None,
    state: Mapping[str, float] | None,
) -> dict[str, Tensor]:
    """KL, entropy bonus and positive-sample NLL by name, each with its coefficient; tensors are 0 where masked.

    Adds ``kl_ref``, Σ k3 over tokens, to what was seen if there is a reference.
    """
    terms: dict[str, Tensor] = {}
    if algorithm.kl is not None and algorithm.kl.place == "loss" and beta != 0:
        estimate = algorithm.kl(logp, _given(ref_logp, "ref_logp", "a KL term"))
        if algorithm.kl.estimator == "k3":
            seen["kl_ref"] = estimate.detach().sum()
        weighed = estimate * importance(log_ratio) if algorithm.kl.corrected else estimate
        terms["kl_loss"] = beta * algorithm.aggregate(weighed, mask, counts)
    if ref_logp is not None and "kl_ref" not in seen:
        seen["kl_ref"] = k3(logp.detach(), ref_logp).sum()
    if algorithm.needs_entropy:
        coef = (algorithm.initial_state() if state is None else state)["entropy_coef"]
        entropy = _given(entropy, "entropy", "an entropy bonus")
        terms["entropy_loss"] = -coef * algorithm.aggregate(entropy, mask, counts)
    if algorithm.positive_nll:
        correct = mask & _given(positive, "positive", "positive-sample NLL").bool()[:, None]
        nll = torch.where(correct, -logp, 0.0).sum() / max(counts.positive_tokens, 1)
        terms["positive_nll_loss"] = algorithm.positive_nll * nll
    return terms


def _given(value: Tensor | None, name: str, what: str) -> Tensor:
    if value is None:
        raise ValueError(f"loss: the algorithm has {what}, so {name} must be given")
    return value
