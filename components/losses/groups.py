"""From scored groups to the vectors that advantages and data rules take."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from components.types import Group

_TOLERANCE = 1e-6


class Outcomes(NamedTuple):
    """One entry per rollout, groups one after the other.

    Attributes:
        valid: scored, neither abstained nor failed.
        correct: the verifier's verdict (raw accuracy term ≥ 1), whatever the reward was shaped to.
        length: tokens that the policy produced.
        truncated: cut at the token limit.
    """

    reward: Float[Tensor, " N"]
    group: Int[Tensor, " N"]
    valid: Bool[Tensor, " N"]
    correct: Bool[Tensor, " N"]
    length: Int[Tensor, " N"]
    truncated: Bool[Tensor, " N"]


def outcomes(groups: Sequence[Group], *, accuracy: str = "accuracy") -> Outcomes:
    """Outcomes of all rollouts of the groups, in order.

    Raises:
        ValueError: a rollout that belongs to another task than its group, scores that do not pair with rollouts, or a
            scored total that is not finite.
    """
    for group in groups:
        if len(group.rollouts) != len(group.scores):
            raise ValueError(f"group {group.task.id}: {len(group.rollouts)} rollouts but {len(group.scores)} scores")
        if strays := {r.task_id for r in group.rollouts} - {group.task.id}:
            raise ValueError(f"group {group.task.id} holds rollouts of {', '.join(sorted(strays))}")
    rows = [
        (i, rollout, score) for i, g in enumerate(groups) for rollout, score in zip(g.rollouts, g.scores, strict=True)
    ]
    reward = torch.tensor([score.total for _, _, score in rows], dtype=torch.float64)
    usable = [score.outcome == "scored" and r.finish not in ("failed", "timeout") for _, r, score in rows]
    valid = torch.tensor(usable, dtype=torch.bool)
    if (broken := (valid & ~reward.isfinite()).nonzero()).numel():
        i, _, score = rows[int(broken[0])]
        raise ValueError(f"group {groups[i].task.id}: reward {score.total} is not finite (terms {dict(score.terms)})")
    return Outcomes(
        reward=torch.where(valid, reward, 0.0).float(),
        group=torch.tensor([i for i, _, _ in rows], dtype=torch.long),
        valid=valid,
        correct=valid & torch.tensor([s.terms.get(accuracy, 0.0) >= 1 for _, _, s in rows], dtype=torch.bool),
        length=torch.tensor([sum(r.action_mask) for _, r, _ in rows], dtype=torch.long),
        truncated=torch.tensor([r.finish == "length" for _, r, _ in rows], dtype=torch.bool),
    )


def group_stats(reward: Float[Tensor, " N"], group: Int[Tensor, " N"], valid: Bool[Tensor, " N"]) -> dict[str, float]:
    """Counts that add up over ranks: groups; those without signal because rewards agree, or because fewer than two
    members were scored; rollouts left out."""
    counts = {"groups": 0.0, "groups_flat": 0.0, "groups_alone": 0.0, "rollouts_invalid": float((~valid).sum())}
    for index in group.unique():
        members = reward[(group == index) & valid]
        counts["groups"] += 1
        if len(members) < 2:
            counts["groups_alone"] += 1
        elif float(members.max() - members.min()) < _TOLERANCE:
            counts["groups_flat"] += 1
    return counts
