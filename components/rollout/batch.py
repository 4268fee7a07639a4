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
    """B groups of G rollouts each, M = B·G rows.

    Attributes:
        prompt_ids: right-padded prompts, one per group.
        prompt_len: their lengths.
        ids: right-padded response tokens, the policy's and the environment's.
        mask: True where the policy produced the token and it is trained on.
        logp_old: log-probability under the sampling policy, nats; 0 where masked.
        length: response tokens of each rollout.
    """

    prompt_ids: Int[Tensor, "B P"]
    prompt_len: Int[Tensor, " B"]
    ids: Int[Tensor, "M C"]
    mask: Bool[Tensor, "M C"]
    logp_old: Float[Tensor, "M C"]
    length: Int[Tensor, " M"]
    group_size: int

    @property
    def group(self) -> Int[Tensor, " M"]:
        """Position of each row's prompt."""
        return torch.arange(len(self.prompt_len)).repeat_interleave(self.group_size)

    def rows(self, groups: Sequence[int]) -> Int[Tensor, " m"]:
        """Rows of the rollouts of these groups."""
        first = torch.tensor(groups, dtype=torch.long)[:, None] * self.group_size
        return (first + torch.arange(self.group_size)).flatten()

    def select(self, groups: Sequence[int]) -> Batch:
        """The part of the batch with these groups, padding cut to what they need."""
        rows = self.rows(groups)
        prompt_len, length = self.prompt_len[list(groups)], self.length[rows]
        width = int(length.max())
        return Batch(
            self.prompt_ids[list(groups), : int(prompt_len.max())],
            prompt_len,
            self.ids[rows, :width],
            self.mask[rows, :width],
            self.logp_old[rows, :width],
            length,
            self.group_size,
        )


def make_batch(groups: Sequence[Group], pad: int) -> Batch:
    """Pad groups of one size into tensors; failed and abstained rollouts are masked out.

    Args:
        pad: any token id; what it is never matters, masks decide.

    Raises:
        ValueError: no groups, or groups of several sizes.
    """
    sizes = {len(group.rollouts) for group in groups}
    if len(sizes) != 1:
        raise ValueError(f"the groups of a batch must have one size (got {sorted(sizes)} in {len(groups)} groups)")
    prompts = [group.rollouts[0].prompt_tokens for group in groups]
    pairs = [pair for group in groups for pair in zip(group.rollouts, group.scores, strict=True)]
    width, length = max(map(len, prompts)), max(1, *(len(rollout.tokens) for rollout, _ in pairs))
    prompt_ids = torch.full((len(groups), width), pad, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        prompt_ids[row, : len(prompt)] = torch.tensor(prompt)
    ids = torch.full((len(pairs), length), pad, dtype=torch.long)
    mask = torch.zeros(len(pairs), length, dtype=torch.bool)
    logp_old = torch.zeros(len(pairs), length)
    for row, (rollout, score) in enumerate(pairs):
        n = len(rollout.tokens)
        ids[row, :n] = torch.tensor(rollout.tokens, dtype=torch.long)
        logp_old[row, :n] = torch.tensor(rollout.logp_behavior, dtype=torch.float)
        if score.outcome == "scored":
            mask[row, :n] = torch.tensor(rollout.action_mask, dtype=torch.bool)
    lengths = torch.tensor([len(rollout.tokens) for rollout, _ in pairs])
    return Batch(prompt_ids, torch.tensor([len(p) for p in prompts]), ids, mask, logp_old, lengths, sizes.pop())


def micro_batches(batch: Batch, groups: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """The groups in parts whose padded tokens stay within ``max_tokens``; a larger group goes alone.

    Groups are sorted by length first, so that padding is small.
    """
    longest = batch.length.view(-1, batch.group_size).amax(1) + batch.prompt_len
    part: list[int] = []
    for group in sorted(groups, key=lambda g: int(longest[g])):
        if part and (len(part) + 1) * batch.group_size * int(longest[group]) > max_tokens:
            yield part
            part = []
        part.append(group)
    if part:
        yield part
