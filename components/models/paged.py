"""Key/value cache in pages and the one-token step on it, in compiled loops between PyTorch's matrix products.

A row's keys and values lie in pages of 16 tokens. Rows of one prompt share its pages, so these stay in the processor's
cache while the group is attended; dropping, keeping and reordering rows moves no page.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from components.compiled import kernels
from components.models.cache import LeanCache

_log = logging.getLogger(__name__)
_TOLERANCE = 1e-4
_WHOLE = 8  # numbers per head are padded to a multiple of it


def compiled_loops(decoder: Any) -> Any:
    """The compiled loops if they serve this decoder's weights as they are now: float32 on CPU, one thread."""
    head = decoder.head
    if head.device.type != "cpu" or head.dtype != torch.float32 or torch.get_num_threads() > 1:
        return None
    return kernels()


@torch.inference_mode()
def agrees(decoder: Any, loops: Any) -> bool:
    """Whether steps in compiled loops give the logits of the whole forward, which was held to the model's at load."""
    generator = torch.Generator().manual_seed(0)
    rows, prompt = 8, loops.PAGE + 1  # two pages, one of them almost empty
    ids = torch.randint(decoder.head.shape[0], (rows, prompt + 2), generator=generator)
    cache = PagedCache(decoder, loops)
    cache.rebuild(torch.zeros(0, dtype=torch.long), ids[:, :prompt].tolist(), [1] * rows)
    for column in (prompt, prompt + 1):
        logits = cache.step(ids[:, column], torch.full((rows,), column))
    expected = F.linear(decoder.hidden(ids)[:, -1], decoder.head)
    gap, scale = (logits - expected).abs().max().item(), expected.abs().max().clamp(min=1.0).item()
    if gap <= _TOLERANCE * scale:
        return True
    _log.warning("decoding without compiled loops, slower: their logits differ by %.3g of %.3g", gap, scale)
    return False


@dataclass(eq=False)
class HeldRow:
    """A row out of the batch. Its pages stay its own for as long as this lives.

    Attributes:
        pages: of the prompt, then the row's own. shared, prompt, own: see `attend`.
    """

    pages: np.ndarray
    shared: int
    prompt: int
    own: int


class PagedCache(LeanCache):
    """`Cache` of a `LeanDecoder` on CPU in float32. Logits of a step are overwritten by the next one."""

    def __init__(self, decoder: Any, loops: Any) -> None:
        super().__init__(decoder)
        self._loops = loops
        self._padded = -(-self._dim // _WHOLE) * _WHOLE
        self._pages: list[tuple[np.ndarray, np.ndarray]] = [self._pool(0) for _ in self._layers]
        self._free = np.zeros(0, np.int64)
        self._table = np.zeros((0, 1), np.int32)
        self._shared, self._prompt, self._own = (np.zeros(0, np.int64) for _ in range(3))
        self._embedding = self._core.embed_tokens.weight.detach()
        self._room: dict[str, Tensor] = {}
        self._heads_room = np.zeros((self._heads // self._kv + 2, self._padded), np.float32)
        self._scores = np.zeros((0, 0), np.float32)
        self._held: WeakSet[HeldRow] = WeakSet()

    def take(self, row: int) -> Any:
        """See `Cache`. Nothing is copied: what the row's place in the batch still computes goes behind its own."""
        shared, own = int(self._shared[row]), int(self._own[row])
        pages = self._table[row, : shared + -(-own // self._loops.PAGE)].copy()
        held = HeldRow(pages, shared, int(self._prompt[row]), own)
        self._held.add(held)
        return held

    def rebuild(
        self,
        keep: Tensor,
        prompts: Sequence[Sequence[int]],
        copies: Sequence[int],
        blocks: Sequence[Any] = (),
    ) -> None:
        """See `Cache.rebuild`."""
        rows = keep.numpy()
        repeats = np.asarray(copies, np.int64)
        lengths = np.array([len(p) for p in prompts], np.int64)
        needed = -(-lengths // self._loops.PAGE)
        self._table = self._table[rows]
        self._put_back(rows, blocks)
        own = self._own
        self._shared = np.concatenate([self._shared, needed.repeat(repeats)])
        self._release(self._shared[: len(own)] + -(-own // self._loops.PAGE))
        self._widen(int(needed.max(initial=0)))
        added = np.zeros((len(prompts), self._table.shape[1]), np.int32)
        for i, count in enumerate(needed):
            added[i, :count] = self._take(int(count))
        self._table = np.concatenate([self._table, added.repeat(repeats, 0)])
        self._prompt = np.concatenate([self._prompt, lengths.repeat(repeats)])
        self._own = np.concatenate([own, np.zeros(int(repeats.sum()), np.int64)])
        if lengths.any():
            places = np.arange(len(prompts))
            longest = -(-int(lengths.max()) // self._loops.PAGE) * self._loops.PAGE
            for (k, v), pool in zip(self._prefill(prompts, longest), self._pages, strict=True):
                self._loops.place(k.contiguous().numpy(), v.contiguous().numpy(), lengths, places, added, *pool)
        self._make_room(len(self._own))

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        loops, room = self._loops, self._views
        new = (self._own % loops.PAGE == 0).nonzero()[0]
        if len(new):
            column = self._shared[new] + self._own[new] // loops.PAGE
            self._widen(int(column.max()) + 1)
            self._table[new, column] = self._take(len(new))
        place = positions.numpy()
        rotations = self._angles(int(place.max()) + 1)
        x, y, qkv, out, inner, gate, logits = room
        torch.index_select(self._embedding, 0, tokens, out=x)
        x_, y_, out_, gate_ = (tensor.numpy() for tensor in (x, y, out, gate))
        for layer, (keys, values) in zip(self._layers, self._pages, strict=True):
            loops.normalise(x_, y_, self._epsilon)
            projected = layer.qkv(y, out=qkv)
            if layer.q_gain is not None:
                self._norm_heads(projected, layer)
            loops.attend(
                projected.numpy(), rotations, place, keys, values, self._table, self._shared, self._prompt, self._own,
                self._factor, out_, self._scores, self._heads_room,
            )  # fmt: skip
            layer.out.onto(x, out)
            loops.normalise(x_, y_, self._epsilon)
            loops.gated(layer.gate_up(y, out=inner).numpy(), gate_)
            layer.down.onto(x, gate)
        self._own += 1
        loops.normalise(x_, y_, self._epsilon)
        return self._head(y, out=logits)

    @property
    def _epsilon(self) -> np.float32:
        return np.float32(self._decoder.eps)

    @property
    def _factor(self) -> np.float32:
        return np.float32(self._dim**-0.5)

    def _norm_heads(self, qkv: Tensor, layer: Any) -> None:
        """RMS norms of each head's q and k, in place."""
        qk = qkv.view(len(qkv), -1, self._dim)[:, : self._heads + self._kv]
        gain = torch.cat([layer.q_gain.expand(self._heads, -1), layer.k_gain.expand(self._kv, -1)])
        qk.copy_(self._norm(qk) * gain)

    def _angles(self, count: int) -> np.ndarray:
        table = self._decoder.rotations(count, self._embedding.device)
        return torch.view_as_real(table).flatten(1).numpy()

    def _pool(self, pages: int) -> tuple[np.ndarray, np.ndarray]:
        page = self._loops.PAGE
        return (
            np.zeros((pages, self._kv, self._padded, page), np.float32),
            np.zeros((pages, self._kv, page, self._padded), np.float32),
        )

    def _put_back(self, rows: np.ndarray, blocks: Sequence[HeldRow]) -> None:
        """The rows that are kept, then those that were taken out, without their pages' being copied."""
        self._widen(max((len(block.pages) for block in blocks), default=0))
        back = np.zeros((len(blocks), self._table.shape[1]), np.int32)
        for i, block in enumerate(blocks):
            back[i, : len(block.pages)] = block.pages
            self._held.discard(block)
        self._table = np.concatenate([self._table, back])
        for name in ("shared", "prompt", "own"):
            column = np.array([getattr(block, name) for block in blocks], np.int64)
            setattr(self, f"_{name}", np.concatenate([getattr(self, f"_{name}")[rows], column]))

    def _release(self, used: np.ndarray) -> None:
        """Make every page free that is not among the first ``used`` ones of a row, nor held by one that was taken."""
        free = np.ones(len(self._pages[0][0]), bool)
        free[self._table[np.arange(self._table.shape[1]) < used[:, None]]] = False
        for held in self._held:
            free[held.pages] = False
        self._free = free.nonzero()[0]

    def _take(self, count: int) -> np.ndarray:
        """Free pages; more are made if there are too few."""
        if len(self._free) < count:
            old = len(self._pages[0][0])
            size = old + max(count, old // 2, 64)
            for i, pools in enumerate(self._pages):
                grown = self._pool(size)
                for small, large in zip(pools, grown, strict=True):
                    large[:old] = small
                self._pages[i] = grown
            self._free = np.concatenate([self._free, np.arange(old, size)])
        taken, self._free = self._free[:count], self._free[count:]
        for pools in self._pages:
            for pool in pools:
                pool[taken] = 0  # a place that is masked has weight 0, and 0 times an earlier row's NaN is NaN
        return taken

    def _widen(self, columns: int) -> None:
        """Room for so many pages in a row, in the table and in the scores."""
        rows, width = self._table.shape
        if width < columns:
            self._table = np.concatenate([self._table, np.zeros((rows, columns + 2 - width), np.int32)], 1)
        wide = self._table.shape[1] * self._loops.PAGE
        if self._scores.shape[1] < wide:
            self._scores = np.zeros((self._heads // self._kv, wide), np.float32)

    def _make_room(self, rows: int) -> None:
        """What a step writes to, for this number of rows."""
        first = self._layers[0]
        widths = {
            "x": self._head.inputs,
            "y": self._head.inputs,
            "qkv": first.qkv.outputs,
            "out": first.out.inputs,
            "inner": first.gate_up.outputs,
            "gate": first.down.inputs,
            "logits": self._head.outputs,
        }
        with torch.inference_mode(False):
            for name, width in widths.items():
                if len(self._room.get(name, ())) < rows:
                    self._room[name] = torch.empty(rows, width)
            self._views = [self._room[name][:rows] for name in widths]
