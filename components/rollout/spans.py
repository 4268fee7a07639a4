"""The turns of a rollout: stretches that the policy wrote without the environment in between."""

from __future__ import annotations

from collections.abc import Sequence

from components.types import Rollout


def turns(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, end) of each run of True, in order."""
    edges = [i for i in range(len(mask) + 1) if (i < len(mask) and mask[i]) != (i > 0 and mask[i - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def turn_logps(rollout: Rollout) -> list[float]:
    """log π(turn | what precedes it), nats, of each of the policy's turns, under the sampling policy."""
    return [sum(rollout.logp_behavior[first:end]) for first, end in turns(rollout.action_mask)]
