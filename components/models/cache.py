"""Static key/value cache of a lean decoder and the one-token step on it.

All rows are aligned at the right: every step writes one column for all rows, whatever their age. A new row's prompt
ends at the current column and a mask hides what lies left of its start. Attention runs over
at least 32 and a multiple of 16 columns, because other widths take matrix kernels that round differently: so a row's
result does not depend, to the bit, on the rows beside it (on CPU; the engine adds that there are at least 8 rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from components.models.fused import rotate
from components.models.products import Product, product
from components.models.projections import linear_parts, pair_rows

_ALIGN = 16
_NARROWEST = 32
_PREFILL_TOKENS = 16384
_RUN_COST = 1000
_ROOM = 64


Block = list[tuple[Tensor, Tensor]]  # keys and values [K, tokens, D] of one row, per layer


class _Packed(NamedTuple):
    """One layer for inference: joint projections, the norms' gains multiplied in or (half precision) apart."""

    qkv_gain: Tensor | None
    qkv: Product
    q_gain: Tensor | None
    k_gain: Tensor | None
    out: Product
    gate_up_gain: Tensor | None
    gate_up: Product
    down: Product


class LeanCache:
    """`Cache` of a `LeanDecoder`. Weights are copied once at construction."""

    mergeable = True

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._core = decoder.model.get_decoder()
        self._heads, self._kv, self._dim = decoder.heads, decoder.kv_heads, decoder.head_dim
        with torch.no_grad():
            self._layers = [self._pack(layer) for layer in self._core.layers]
            self._gain, self._head = self._fold(self._core.norm.weight, decoder.head)
        self._like = decoder.head
        scale = torch.ones(self._heads + self._kv, 1, device=self._like.device)
        scale[: self._heads] = self._dim**-0.5
        self._scale = scale  # of the scores, applied to q with its rotation
        self._capacity = (0, 0)  # rows and columns allocated; the first rows are in use
        self._keys: list[Tensor] = [self._like.new_zeros(0, self._kv, 0, self._dim) for _ in self._layers]
        self._values: list[Tensor] = [self._like.new_zeros(0, self._kv, 0, self._dim) for _ in self._layers]
        self._start = torch.zeros(0, dtype=torch.long, device=self._like.device)
        self._bias = self._like.new_zeros(0, 0)
        self._spans: list[tuple[int, int, int]] = []  # (first row, end row, first column any of them sees)
        self._next = 0  # column the next token is written to

    def take(self, row: int) -> Block:
        """A copy of what one row holds, for `rebuild` to put back later, after whatever the others did meanwhile."""
        held = slice(int(self._start[row]), self._next)
        return [
            (k[row, :, held].clone(), v[row, :, held].clone()) for k, v in zip(self._keys, self._values, strict=True)
        ]

    def rebuild(
        self,
        keep: Tensor,
        prompts: Sequence[Sequence[int]],
        copies: Sequence[int],
        blocks: Sequence[Block] = (),
    ) -> None:
        """See `Cache.rebuild`. Works in place where rows and columns suffice: stale columns are masked, never read."""
        low = int(self._start[keep].min()) if len(keep) else self._next
        kept, longest = self._next - low, max((len(p) for p in prompts), default=0)
        sizes = [block[0][0].shape[1] for block in blocks]
        repeats = torch.tensor(list(copies), dtype=torch.long, device=self._like.device)
        back = len(keep) + len(blocks)  # rows before the first prompt's
        total = back + int(repeats.sum())
        deepest = max(longest, *sizes, 0)
        used, (rows, width) = max(self._next, deepest), self._capacity
        if used + _ALIGN > width:  # no room to the right: move what is kept to the left
            used = max(kept, deepest)
        if total > rows or used + _ALIGN > width:
            width = max(width, _aligned(used + max(_ROOM, used // 2)))
            self._capacity = max(rows, total), width
        block = self._prefill(prompts, _aligned(longest)) if longest else [()] * len(self._layers)
        # Columns stay where they are, mostly: then only rows that change places are copied.
        places = torch.arange(len(keep), device=keep.device)
        changed = (keep != places).nonzero()[:, 0] if used == self._next else places
        source = keep[changed]
        for i, fresh in enumerate(block):
            for j, store in enumerate((self._keys, self._values)):
                whole = store[i]
                if whole.shape[0] < self._capacity[0] or whole.shape[2] < self._capacity[1]:
                    moved = whole[:, :, low : self._next].index_select(0, keep)
                    whole = store[i] = self._like.new_zeros(self._capacity[0], self._kv, self._capacity[1], self._dim)
                    whole[: len(keep), :, used - kept : used] = moved
                elif len(changed):
                    moved = whole[:, :, low : self._next].index_select(0, source)
                    whole[:, :, used - kept : used].index_copy_(0, changed, moved)
                for row, (size, held) in enumerate(zip(sizes, blocks, strict=True), len(keep)):
                    whole[row, :, used - size : used] = held[i][j]
                if fresh:
                    part = fresh[j].repeat_interleave(repeats, 0)[:, :, -longest:]
                    whole[back:total, :, used - longest : used] = part
        lengths = torch.tensor([*sizes, *map(len, prompts)], dtype=torch.long, device=self._like.device)
        repeats = torch.cat([repeats.new_ones(len(sizes)), repeats])
        self._start = torch.cat([self._start[keep] + (used - self._next), (used - lengths).repeat_interleave(repeats)])
        column = torch.arange(self._capacity[1], device=self._like.device)
        hidden = (column < self._start[:, None]) | (column >= used)
        self._bias = self._like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        self._next = used
        self._spans = _spans([start // _ALIGN * _ALIGN for start in self._start.tolist()])

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if self._next == self._bias.shape[1]:
            self.rebuild(torch.arange(len(tokens), device=tokens.device), (), ())
        rows, heads, kv, dim = len(tokens), self._heads, self._kv, self._dim
        here = self._next
        high = max(_NARROWEST, _aligned(here + 1))
        self._bias[:, here] = 0.0
        spans = [(slice(a, b), slice(min(low, high - _NARROWEST), high)) for a, b, low in self._spans]
        biases = [self._bias[a, None, None, columns] for a, columns in spans]
        rotation = self._rotation(positions, high)
        x = F.embedding(tokens, self._core.embed_tokens.weight)
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            q, k, v = self._qkv(layer, x, rotation)
            keys[:rows, :, here], values[:rows, :, here] = k, v
            q, parts = q.reshape(rows, kv, heads // kv, dim), []
            for (some, columns), bias in zip(spans, biases, strict=True):
                scores = torch.matmul(q[some], keys[some, :, columns].transpose(-1, -2))
                parts.append(torch.matmul(scores.add_(bias).softmax(-1), values[some, :, columns]))
            out = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(rows, heads * dim)
            x = self._mlp(layer, layer.out.onto(x, out))
        self._next += 1
        return self._head(self._norm(x, self._gain)).float()

    def _prefill(self, prompts: Sequence[Sequence[int]], width: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [prompts, K, width, D] per layer, prompts aligned at the right; bounded memory in between."""
        most = max(1, _PREFILL_TOKENS // width)
        parts = [self._prefill_at_once(prompts[i : i + most], width) for i in range(0, len(prompts), most)]
        return [
            (torch.cat([p[i][0] for p in parts]), torch.cat([p[i][1] for p in parts])) for i in range(len(parts[0]))
        ]

    def _prefill_at_once(self, prompts: Sequence[Sequence[int]], width: int) -> list[tuple[Tensor, Tensor]]:
        device, count = self._like.device, len(prompts)
        ids = torch.zeros(count, width, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            if prompt:
                ids[i, width - len(prompt) :] = torch.as_tensor(prompt)
        ids = ids.to(device)
        pad = width - torch.tensor([len(p) for p in prompts], device=device)
        column = torch.arange(width, device=device)
        position = (column - pad[:, None]).clamp_(min=0)
        rotation = self._rotation(position.reshape(-1), width)
        # A padding column sees itself, so that its (unused) attention is not 0/0.
        seen = (column >= pad[:, None])[:, None] & (column <= column[:, None]) | (column == column[:, None])
        bias = self._like.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))[:, None]
        x = F.embedding(ids.reshape(-1), self._core.embed_tokens.weight)
        out = []
        for layer in self._layers:
            q, k, v = (y.view(count, width, -1, self._dim).transpose(1, 2) for y in self._qkv(layer, x, rotation))
            out.append((k, v))
            if len(out) == len(self._layers):
                break  # only keys and values are needed
            grouped = self._heads != self._kv
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0, enable_gqa=grouped)
            attended = attended.transpose(1, 2).reshape(count * width, -1)
            x = self._mlp(layer, layer.out.onto(x, attended))
        return out

    def _rotation(self, positions: Tensor, below: int) -> Tensor:
        """Rotation, and score scale for q, of tokens at these positions: [n, H+K, D/2]."""
        return self._decoder.rotations(below, positions.device).index_select(0, positions)[:, None] * self._scale

    def _norm(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], gain, self._decoder.eps)

    def _qkv(self, layer: _Packed, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = layer.qkv(self._norm(x, layer.qkv_gain)).view(len(x), -1, self._dim)
        qk, v = y[:, : self._heads + self._kv], y[:, self._heads + self._kv :]
        if layer.q_gain is not None and layer.k_gain is not None:
            qk = self._norm(qk)
            qk[:, : self._heads] *= layer.q_gain
            qk[:, self._heads :] *= layer.k_gain
        qk = rotate(qk, rotation)
        return qk[:, : self._heads], qk[:, self._heads :], v

    def _mlp(self, layer: _Packed, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._norm(x, layer.gate_up_gain)).chunk(2, -1)
        return layer.down.onto(x, F.silu(gate).mul_(up))

    def _fold(self, gain: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor | None, Product]:
        """A norm's gain, if it stays apart, and the linear layer behind it."""
        if self._decoder.folds:
            return None, product(weight * gain, bias)
        return gain, product(weight, bias)

    def _pack(self, layer: Any) -> _Packed:
        attention, mlp = layer.self_attn, layer.mlp
        qkv_gain, qkv = self._fold(layer.input_layernorm.weight, *self._decoder.qkv(layer))
        q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        gate_up_gain, gate_up = self._fold(layer.post_attention_layernorm.weight, *self._decoder.gate_up(layer))
        return _Packed(
            qkv_gain=qkv_gain,
            qkv=qkv,
            q_gain=None if q_norm is None else pair_rows(q_norm.weight, 1),
            k_gain=None if k_norm is None else pair_rows(k_norm.weight, 1),
            out=product(*linear_parts(attention.o_proj)),
            gate_up_gain=gate_up_gain,
            gate_up=gate_up,
            down=product(*linear_parts(mlp.down_proj)),
        )


def _spans(starts: list[int]) -> list[tuple[int, int, int]]:
    """Runs of neighbouring rows that attend together, from the first column of its group: (first, end, column).

    Rows are admitted in batches, so neighbours are of like age. Two runs are joined while that adds fewer row-columns
    of attention than the operations of one more run cost.
    """
    runs: list[list[int]] = []
    for row, start in enumerate(starts):
        if runs and runs[-1][2] == start:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1, start])
    while len(runs) > 1:
        added = [
            (b[2] - a[2]) * (b[1] - b[0]) if a[2] <= b[2] else (a[2] - b[2]) * (a[1] - a[0]) for a, b in pairwise(runs)
        ]
        least = min(added)
        if least > _RUN_COST:
            break
        i = added.index(least)
        runs[i : i + 2] = [[runs[i][0], runs[i + 1][1], min(runs[i][2], runs[i + 1][2])]]
    return [(a, b, c) for a, b, c in runs]


def _aligned(columns: int) -> int:
    return -(-columns // _ALIGN) * _ALIGN
