"""Advantages: how much better a rollout (or token) was than expected. Constant with respect to θ.

A function names what it needs, and returns [N] or [N, T]:
    reward [N] · group [N], integer ids · valid [N], False: failed or abstained, outside all statistics, advantage 0 ·
    mask [N, T] · penalty [N, T], β·k1, to be subtracted from the reward per token · value [N, T], the critic's ·
    all_reduce, sums a tensor over ranks in place.
Statistics are taken in float64. Groups lie whole on one rank.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Rewards closer than this (times the largest, if above 1) are equal: rounding would otherwise become advantages of up
# to 0.9.
_TOLERANCE = 1e-6


def group_norm(
    reward: Float[Tensor, " N"], group: Int[Tensor, " N"], valid: Bool[Tensor, " N"], *, eps: float = 1e-4
) -> Float[Tensor, " N"]:
    """(R − μ_g)/(σ_g + eps), σ with Bessel's correction; exactly 0 in a group whose rewards agree.

    Dividing by σ gives groups that are nearly always or never solved a larger weight; `group_center` does not.

    Source: arXiv:2402.03300 §4.1.1.
    """
    centred, size, index = _centre(reward, group, valid)
    square = torch.zeros_like(size).index_add_(0, index, centred**2)
    std = (square / (size - 1).clamp(min=1)).sqrt()
    return (centred / (std[index] + eps)).to(reward.dtype)


def group_center(
    reward: Float[Tensor, " N"], group: Int[Tensor, " N"], valid: Bool[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """R − μ_g (Dr. GRPO, arXiv:2503.20783)."""
    return _centre(reward, group, valid)[0].to(reward.dtype)


def leave_one_out(
    reward: Float[Tensor, " N"], group: Int[Tensor, " N"], valid: Bool[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """R_i − mean of the group's other rewards = G/(G−1)·(R − μ_g); 0 when G = 1.

    Source: RLOO arXiv:2402.14740; LOOP arXiv:2502.01600.
    """
    centred, size, index = _centre(reward, group, valid)
    return (centred * (size / (size - 1).clamp(min=1))[index]).to(reward.dtype)


def global_whiten(
    reward: Float[Tensor, " N"],
    group: Int[Tensor, " N"],
    valid: Bool[Tensor, " N"],
    mask: Bool[Tensor, "N T"],
    penalty: Float[Tensor, "N T"] | None = None,
    all_reduce: Callable[[Tensor], None] | None = None,
    *,
    baseline: Literal["none", "group_mean"] = "none",
) -> Float[Tensor, "N T"]:
    """Reward-to-go per token, whitened over all valid tokens of the whole update (REINFORCE++, arXiv:2501.03262).

    x_t = R − Σ_{s≥t} penalty_s;  A = (x − mean)/std, population std; exactly 0 when std < 1e-6. Once per update.

    Args:
        baseline: "group_mean" takes R − μ_g for R (REINFORCE++-baseline).
    """
    if baseline not in ("none", "group_mean"):
        raise ValueError(f"advantage global_whiten: baseline must be none or group_mean, got {baseline!r}")
    outcome = reward.double() if baseline == "none" else _centre(reward, group, valid)[0]
    mask = mask.bool() & valid.bool()[:, None]
    to_go = _token_rewards(outcome, mask, penalty).flip(-1).cumsum(-1).flip(-1)
    return whiten(to_go, mask, all_reduce).to(reward.dtype)


def gae(
    reward: Float[Tensor, " N"],
    valid: Bool[Tensor, " N"],
    mask: Bool[Tensor, "N T"],
    value: Float[Tensor, "N T"],
    penalty: Float[Tensor, "N T"] | None = None,
    all_reduce: Callable[[Tensor], None] | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    alpha: float | None = None,
    whitened: bool = False,
) -> Float[Tensor, "N T"]:
    """Generalised advantage: δ_t = r_t + γV_{t+1} − V_t,  Â_t = Σ_k (γλ)^k δ_{t+k}; R is paid at the last token.

    Tokens outside the mask (tool output) are passed over: V and Â come from the policy's next own token.

    Args:
        lam: λ; R1 found 0.95 far worse than 1.0.
        alpha: VAPO's length-adaptive λ = `adaptive_lambda` (length, alpha) in place of lam.
        whitened: zero mean and unit population std over the update's tokens.

    Source: arXiv:1506.02438 eq. 16; length-adaptive λ, arXiv:2504.05118 §4.2.
    """
    mask = mask.bool() & valid.bool()[:, None]
    decay = torch.full_like(reward, lam, dtype=torch.float64) if alpha is None else adaptive_lambda(mask.sum(-1), alpha)
    rewards, values = _token_rewards(reward.double(), mask, penalty), value.double()
    following_value = following = torch.zeros_like(decay)
    steps: list[Tensor] = []
    for t in reversed(range(mask.shape[1])):
        delta = rewards[:, t] + gamma * following_value - values[:, t]
        here = delta + gamma * decay * following
        steps.append(torch.where(mask[:, t], here, 0.0))
        following = torch.where(mask[:, t], here, following)
        following_value = torch.where(mask[:, t], values[:, t], following_value)
    advantage = torch.stack(steps[::-1], dim=1) if steps else torch.zeros_like(rewards)
    return (whiten(advantage, mask, all_reduce) if whitened else advantage).to(reward.dtype)


def adaptive_lambda(length: Int[Tensor, " N"], alpha: float = 0.05) -> Float[Tensor, " N"]:
    """λ = 1 − 1/(α·l), 0 for l ≤ 1/α: long responses keep the outcome's signal (VAPO, arXiv:2504.05118 eq. 9)."""
    if alpha <= 0:
        raise ValueError(f"advantage gae: alpha must be positive, got {alpha}")
    return (1 - 1 / (alpha * length.double().clamp(min=1))).clamp(min=0.0)


def whiten(
    x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], all_reduce: Callable[[Tensor], None] | None = None
) -> Float[Tensor, "N T"]:
    """(x − mean)/std over the mask and over all ranks; 0 outside the mask, and everywhere when std < 1e-6."""
    x = torch.where(mask, x.double(), 0.0)
    total = torch.stack([mask.sum().double(), x.sum()])
    if all_reduce is not None:
        all_reduce(total)
    centred = torch.where(mask, x - total[1] / total[0].clamp(min=1), 0.0)
    square = (centred**2).sum()
    if all_reduce is not None:
        all_reduce(square)
    std = (square / total[0].clamp(min=1)).sqrt()
    return centred / std if float(std) >= _TOLERANCE else torch.zeros_like(x)


def _centre(reward: Tensor, group: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(R − μ_g in float64, 0 if invalid or if the group agrees; group sizes; each rollout's index into them)."""
    valid = valid.bool()
    _, index = torch.unique(group, return_inverse=True)
    groups = int(index.max()) + 1 if index.numel() else 0
    exact = torch.where(valid, reward.double(), 0.0)
    size = torch.zeros(groups, dtype=torch.float64, device=reward.device).index_add_(0, index, valid.double())
    mean = torch.zeros_like(size).index_add_(0, index, exact) / size.clamp(min=1)
    high = torch.full_like(size, -torch.inf).scatter_reduce_(0, index[valid], exact[valid], "amax")
    low = torch.full_like(size, torch.inf).scatter_reduce_(0, index[valid], exact[valid], "amin")
    tolerance = _TOLERANCE * torch.maximum(high.abs(), low.abs()).clamp(min=1)
    signal = valid & (high - low >= tolerance)[index]
    return torch.where(signal, exact - mean[index], 0.0), size, index


def _token_rewards(outcome: Tensor, mask: Tensor, penalty: Tensor | None) -> Tensor:
    """−penalty per token plus the outcome at the last token of the mask, float64 [N, T]."""
    per_token = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    if penalty is not None:
        per_token = torch.where(mask, -penalty.double(), 0.0)
    last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    return per_token + torch.where(last, outcome[:, None], 0.0)
