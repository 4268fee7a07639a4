"""Groups of rollouts → padded tensors, the prompt held once per group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from components.types import Group


@dataclass(frozen=True)
class Batch:
    """A micro-batch of M = groups × G rollouts.

    Attributes:
        prompt_ids: left-padded prompts, one per group.
        prompt_len: their lengths.
        ids: right-padded response tokens, the policy's and the environment's.
        mask: True where the policy produced the token and it is trained on.
        logp_old: log-probability under the sampling policy, nats; 0 where masked.
    """

    prompt_ids: Int[Tensor, "B P"]
    prompt_len: Int[Tensor, " B"]
    ids: Int[Tensor, "M C"]
    mask: Bool[Tensor, "M C"]
    logp_old: Float[Tensor, "M C"]
    group_size: int


def make_batch(groups: Sequence[Group], keep: Sequence[Sequence[bool]], pad: int) -> Batch:
    """Pad groups of equal size into tensors.

    Args:
        keep: per group and rollout, whether its tokens are trained on (failed and filtered rollouts are not).
        pad: any token id; what it is never matters, masks decide.
    """
    sizes = {len(group.rollouts) for group in groups}
    if len(sizes) != 1:
        raise ValueError(f"groups of one batch must have one size (got {sorted(sizes)})")
    prompts = [group.rollouts[0].prompt_tokens for group in groups]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    kept = [flag for flags in keep for flag in flags]
    width, length = max(map(len, prompts)), max(1, *(len(r.tokens) for r in rollouts))
    prompt_ids = torch.full((len(groups), width), pad, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        prompt_ids[row, width - len(prompt) :] = torch.tensor(prompt)
    ids = torch.full((len(rollouts), length), pad, dtype=torch.long)
    mask = torch.zeros(len(rollouts), length, dtype=torch.bool)
    logp_old = torch.zeros(len(rollouts), length)
    for row, rollout in enumerate(rollouts):
        n = len(rollout.tokens)
        ids[row, :n] = torch.tensor(rollout.tokens, dtype=torch.long)
        logp_old[row, :n] = torch.tensor(rollout.logp_behavior, dtype=torch.float)
        if kept[row]:
            mask[row, :n] = torch.tensor(rollout.action_mask, dtype=torch.bool)
    return Batch(prompt_ids, torch.tensor([len(p) for p in prompts]), ids, mask, logp_old, sizes.pop())


def micro_batches(groups: Sequence[Group], max_tokens: int) -> Iterator[list[int]]:
    """Positions of groups, packed so that a micro-batch's padded response tokens stay within ``max_tokens``.

    Groups are sorted by length first, so that padding is small; a group that alone exceeds the budget goes alone.
    """
    longest = [max(len(r.tokens) for r in group.rollouts) + len(group.rollouts[0].prompt_tokens) for group in groups]
    order = sorted(range(len(groups)), key=lambda i: longest[i])
    part: list[int] = []
    for i in order:
        rows = sum(len(groups[j].rollouts) for j in [*part, i])
        if part and rows * longest[i] > max_tokens:
            yield part
            part = []
        part.append(i)
    if part:
        yield part
