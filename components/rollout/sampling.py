"""From logits and a uniform number to a token. The number is a function of (sequence seed, position)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from components.compiled import kernels

_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Applied in this order; later rules see what earlier ones left, renormalised.

    Attributes:
        max_new_tokens: limit on what follows the prompt, the environment's tokens included.
        temperature: logits are divided by it; 0 is greedy.
        top_k: keep the k most likely tokens (and ties of the last); 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches p; 1 keeps all.
        min_p: drop tokens less likely than min_p times the most likely one.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ValueError(
                f"need top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1; got {self.top_k}, {self.top_p}, {self.min_p}"
            )

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def mix(x: Int[Tensor, " R"]) -> Int[Tensor, " R"]:
    """The finaliser of SplitMix64 on int64 (arithmetic modulo 2^64): each input bit flips half of the output bits.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    x = (x ^ _shift(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ _shift(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ _shift(x, 31)


def uniforms(key: Int[Tensor, " R"], position: Int[Tensor, " R"]) -> Float[Tensor, " R"]:
    """Independent uniform numbers in (0, 1), float32, for positions of sequences with ``key = mix(seed)``."""
    bits = _shift(mix(key + position * -0x61C8864680B583EB), 41)  # golden-ratio steps; 23 bits stay
    return (bits * 2 + 1).to(torch.float32) * 2.0**-24


def draw(
    logits: Float[Tensor, "R V"], key: Int[Tensor, " R"], position: Int[Tensor, " R"], sampling: Sampling
) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """`choose` by the `uniforms` of (key, position); in one pass where loops are compiled and nothing is truncated.

    Both ways follow one distribution function: they differ only where rounding decides. ``logits`` may be overwritten.
    """
    loops = None if sampling.truncates or not logits.is_contiguous() or logits.device.type != "cpu" else kernels()
    if loops is None:
        return choose(logits, uniforms(key, position), sampling)
    rows, size = logits.shape
    token, logp = torch.empty(rows, dtype=torch.long), torch.empty(rows)
    blocks = -(-size // loops.BLOCK)
    scratch, sums = np.empty(blocks * loops.BLOCK, np.float32), np.empty(blocks, np.float32)
    given = (logits.numpy(), key.numpy(), position.numpy(), np.float32(sampling.temperature))
    loops.sample(*given, scratch, sums, token.numpy(), logp.numpy())
    return token, logp


def choose(
    logits: Float[Tensor, "R V"], uniform: Float[Tensor, " R"], sampling: Sampling
) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """Token by inversion of the distribution function, and its log-probability (nats). ``logits`` is overwritten.

    Token k is chosen if Σ_{j<k} p_j <= u < Σ_{j<=k} p_j: a token of probability 0 never is.
    """
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return token, (logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(-1))
    if sampling.temperature != 1:
        logits /= sampling.temperature
    if sampling.truncates:
        truncate(logits, sampling)
    rows, size = logits.shape
    logits -= logits.amax(-1, keepdim=True)
    weight = F.pad(logits.exp(), (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    # Two levels, block then token in the block: a running sum over the whole vocabulary is slow on CPU.
    below = weight.sum(-1).cumsum(-1)
    target = _below(uniform * below[:, -1], below[:, -1])
    # Where logits are NaN every place is as good: the log-probability is NaN, too, and whoever collects refuses it.
    block = torch.searchsorted(below, target[:, None], right=True).clamp_(max=below.shape[1] - 1)
    rest = target - torch.where(block > 0, below.gather(1, (block - 1).clamp_(min=0)), 0.0)[:, 0]
    inner = weight.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1)
    rest = _below(rest, inner[:, -1])
    token = block[:, 0] * _BLOCK + torch.searchsorted(inner, rest[:, None], right=True)[:, 0]
    token.clamp_(max=size - 1)
    return token, logits.gather(1, token[:, None])[:, 0] - below[:, -1].log()


def truncate(logits: Float[Tensor, "R V"], sampling: Sampling) -> None:
    """Set the logits that ``sampling`` rules out to -inf, in place; at least one per row stays."""
    if 0 < sampling.top_k < logits.shape[1]:
        least = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits.masked_fill_(logits < least, float("-inf"))
    if sampling.top_p < 1:
        ordered, index = torch.sort(logits.softmax(-1), dim=-1, descending=True, stable=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        logits.masked_fill_(torch.zeros_like(outside).scatter_(1, index, outside), float("-inf"))
    if sampling.min_p > 0:
        probability = logits.softmax(-1)
        logits.masked_fill_(probability < sampling.min_p * probability.amax(-1, keepdim=True), float("-inf"))


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right of 64-bit words."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _below(value: Tensor, limit: Tensor) -> Tensor:
    """min(value, the number just below limit): rounding must not reach the end of the distribution."""
    return torch.minimum(value, torch.nextafter(limit, torch.zeros_like(limit)))
