"""Credit per turn: what the policy wrote between two answers of its environment is rewarded for what it led to."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from components.losses.advantage import leave_one_out
from components.types import Group


def turn_level(
    reward: Float[Tensor, " N"],
    group: Int[Tensor, " N"],
    valid: Bool[Tensor, " N"],
    mask: Bool[Tensor, "N T"],
    turn_reward: Float[Tensor, "N K"],
    *,
    base: Callable[..., Tensor] = leave_one_out,
    weight: float = 1.0,
    gamma: float = 1.0,
) -> Float[Tensor, "N T"]:
    """The trajectory's advantage, plus that of each turn among its group's turns of the same number.

    A_{i,t} = base(R)_i + weight·(G_{i,k(t)} − μ_{g,k}),  G_{i,k} = Σ_{j≥k} γ^{j−k}·r_{i,j}. The mean μ_{g,k} is over
    the group's valid members that have a k-th turn: the second term is 0 for one that is alone with it. k(t) is the
    run of the mask that t lies in. Without turn rewards this is the base alone.

    Args:
        turn_reward: r, the environment's reward of each turn; 0 beyond a rollout's last.
        base: of the trajectory's reward, group-relative.
        weight: of the turns' part. gamma: discount per turn.

    Raises:
        ValueError: gamma outside [0, 1], or a negative weight.

    Source: turn-level credit of multi-turn agents, arXiv:2505.11821 §4 (there for one turn and its outcome).
    """
    if not 0 <= gamma <= 1 or weight < 0:
        raise ValueError(f"advantage turn_level: need gamma in [0, 1] and weight >= 0, got {gamma} and {weight}")
    mask, valid = mask.bool(), valid.bool()
    trajectory = base(reward, group, valid).double()
    number = turn_numbers(mask)
    turns = max(int(number.max()) + 1 if number.numel() else 0, turn_reward.shape[1], 1)
    paid = torch.zeros(len(reward), turns, dtype=torch.float64, device=reward.device)
    paid[:, : turn_reward.shape[1]] = turn_reward.double()
    to_go = torch.zeros_like(paid)
    following = torch.zeros_like(paid[:, 0])
    for k in reversed(range(turns)):
        following = to_go[:, k] = paid[:, k] + gamma * following
    last = number.amax(-1) if number.shape[1] else torch.full_like(group, -1)
    there = valid[:, None] & (torch.arange(turns, device=reward.device) <= last[:, None])
    relative = weight * _centred(to_go, group, there)
    own = relative.gather(1, number.clamp(min=0)) if number.shape[1] else relative[:, :0]
    return torch.where(mask & valid[:, None], trajectory[:, None] + own, 0.0).to(reward.dtype)


def turn_numbers(mask: Bool[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """Number of the turn, from 0, that each position lies in or after; −1 before the first."""
    before = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], 1)
    return (mask & ~before).cumsum(-1) - 1


def turn_rewards(groups: Sequence[Group]) -> Float[Tensor, "N K"]:
    """The environment's rewards of all rollouts' turns, in order; 0 beyond a rollout's last."""
    rows = [rollout.turn_rewards for group in groups for rollout in group.rollouts]
    out = torch.zeros(len(rows), max(map(len, rows), default=0))
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out


def _centred(value: Any, group: Tensor, there: Tensor) -> Tensor:
    """Value less its mean over the group's members that are there, 0 where not."""
    _, index = torch.unique(group, return_inverse=True)
    groups = int(index.max()) + 1 if index.numel() else 0
    count = value.new_zeros(groups, value.shape[1]).index_add_(0, index, there.to(value.dtype))
    total = value.new_zeros(groups, value.shape[1]).index_add_(0, index, torch.where(there, value, 0.0))
    return torch.where(there, value - (total / count.clamp(min=1))[index], 0.0)
