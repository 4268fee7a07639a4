"""A lean forward for Llama-shaped decoders on the weights of the transformers module.

Per layer:  h += W_o·attention(rope(W_q·n(h)), rope(W_k·n(h)), W_v·n(h));  h += W_down·(silu(W_gate·n(h)) ∘ W_up·n(h)),
n the RMS norm (optionally also on each head's q and k). Fewer, larger operations than the module's own: q, k, v and
gate, up are one product each, and a rotation is one complex multiplication, for which rows of W_q and W_k are taken
in the order (0, D/2, 1, D/2+1, …): q·k does not change if both are permuted alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from components.models.cache import LeanCache
from components.models.fused import normalise, pick, rotate, spread
from components.models.paged import PagedCache, agrees, compiled_loops
from components.models.projections import (
    adapted,
    add_beside,
    is_linear,
    learns_beside,
    linear_parts,
    pair_rows,
    to_device,
)

_MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
_PACK_BELOW = 0.9  # padding is cut out of everything but attention if at most this share of the tokens is real
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [n H D], k [n K D], v [n K D]) of all tokens -> attention output [n, H·D]."""


def lean_obstacle(model: Any) -> str | None:
    """Why the lean forward does not apply to this model, or None if it does."""
    config = model.config
    if model.get_input_embeddings().weight.device.type == "mps":
        return "complex numbers, which MPS lacks in part"
    if config.model_type not in _MODEL_TYPES:
        return f"model type {config.model_type}"
    if getattr(config, "use_sliding_window", config.model_type == "mistral") and getattr(
        config, "sliding_window", None
    ):
        return "sliding-window attention"
    if config.hidden_act not in ("silu", "swish"):
        return f"activation {config.hidden_act}"
    if getattr(config, "attention_dropout", 0.0):
        return "attention dropout"
    if model.get_output_embeddings().bias is not None:
        return "a bias on the LM head"
    core = model.get_decoder()
    if core.rotary_emb.rope_type not in _STATIC_ROPE:
        return f"rotary embedding {core.rotary_emb.rope_type}"
    for layer in core.layers:
        attention, mlp = layer.self_attn, layer.mlp
        linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        for linear in [*linears, mlp.gate_proj, mlp.up_proj, mlp.down_proj]:
            if not is_linear(linear):
                return f"a projection of type {type(linear).__name__}"
    return None


class LeanDecoder:
    """`Decoder` for models that have no `lean_obstacle`. Differentiable; honours activation checkpointing."""

    lean = True

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model
        self._core = model.get_decoder()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self._rotations = torch.empty(0)
        self._loops_agree: bool | None = None

    @property
    def head(self) -> Tensor:
        return self.model.get_output_embeddings().weight

    def rotations(self, count: int, device: torch.device) -> Tensor:
        """exp(i·position·frequency) for positions below ``count``: complex [≥count, D/2]."""
        table = self._rotations
        if len(table) < count or table.device != device:
            rope = self._core.rotary_emb
            position = torch.arange(max(count, 2 * len(table), 256), device=device, dtype=torch.float32)
            angle = position[:, None] * rope.inv_freq.detach().float().to(device)
            with torch.inference_mode(False):  # kept for later calls, which may need gradients
                table = torch.polar(torch.full_like(angle, float(rope.attention_scaling)), angle).clone()
            self._rotations = table
        return table

    def hidden(self, ids: Tensor, length: Tensor | None = None) -> Tensor:
        rows, width = ids.shape
        ids, length = to_device(self.head.device, ids, length)
        rotation = self.rotations(width, ids.device)[:width].repeat(rows, 1)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.view(rows, width, -1, self.head_dim).transpose(1, 2) for x in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
            return out.transpose(1, 2).reshape(rows * width, -1)

        valid = None if length is None else torch.arange(width, device=ids.device) < length[:, None]
        return self._forward(ids.reshape(-1), rotation, attend, valid).view(rows, width, -1)

    def hidden_shared(
        self, prompt_ids: Tensor, prompt_len: Tensor, ids: Tensor, group: Tensor, length: Tensor | None = None
    ) -> Tensor:
        prompt_ids, prompt_len, ids, group, length = to_device(
            self.head.device, prompt_ids, prompt_len, ids, group, length
        )
        prompts, prompt_width = prompt_ids.shape
        rows, width = ids.shape[0], ids.shape[1] - 1  # the last token predicts nothing
        split = prompts * prompt_width
        device, grouped = ids.device, self.heads != self.kv_heads
        before = prompt_len[group][:, None]
        column = torch.arange(max(prompt_width, width), device=device)
        position = torch.cat([column[:prompt_width].repeat(prompts), (before + column[:width]).reshape(-1)])
        rotation = self.rotations(prompt_width + width, device)[position]
        seen = torch.cat(
            [
                (column[:prompt_width] < before)[:, None].expand(rows, width, prompt_width),
                (column[:width] <= column[:width, None]).expand(rows, width, width),
            ],
            -1,
        )
        mask = torch.zeros(seen.shape, dtype=self.head.dtype, device=device).masked_fill_(~seen, float("-inf"))[:, None]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            shared = (x[:split].view(prompts, prompt_width, -1, self.head_dim).transpose(1, 2) for x in (q, k, v))
            prompt_q, prompt_k, prompt_v = shared
            out = F.scaled_dot_product_attention(prompt_q, prompt_k, prompt_v, is_causal=True, enable_gqa=grouped)
            parts = [out.transpose(1, 2).reshape(split, -1)]
            if width:
                q, k, v = (x[split:].view(rows, width, -1, self.head_dim).transpose(1, 2) for x in (q, k, v))
                k = torch.cat([prompt_k.index_select(0, group), k], 2)
                v = torch.cat([prompt_v.index_select(0, group), v], 2)
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
                parts.append(out.transpose(1, 2).reshape(rows * width, -1))
            return torch.cat(parts)

        fed = (ids.new_full((rows,), width) if length is None else length - 1)[:, None]
        valid = [(column[:prompt_width] < prompt_len[:, None]).reshape(-1), (column[:width] < fed).reshape(-1)]
        flat = torch.cat([prompt_ids.reshape(-1), ids[:, :-1].reshape(-1)])
        states = self._forward(flat, rotation, attend, torch.cat(valid))
        ends = torch.arange(prompts, device=device) * prompt_width + prompt_len - 1
        first = states.index_select(0, ends.index_select(0, group))[:, None]
        return torch.cat([first, states[split:].view(rows, width, states.shape[-1])], 1)

    def new_cache(self) -> LeanCache:
        loops = compiled_loops(self)
        if loops is not None and self._loops_agree is None:
            self._loops_agree = agrees(self, loops)
        return PagedCache(self, loops) if loops is not None and self._loops_agree else LeanCache(self)

    def _forward(self, ids: Tensor, rotation: Tensor, attend: Attend, valid: Tensor | None) -> Tensor:
        """States of flat ids. Where ``valid`` is False, and there is enough of it, nothing is computed but zeros."""
        rotation, size = rotation[:, None], len(ids)
        index = None if valid is None else valid.reshape(-1).nonzero()[:, 0]
        if index is not None and len(index) <= _PACK_BELOW * size:
            ids, rotation, attend = ids[index], rotation[index], _on_padded(attend, index, size)
        else:
            index = None
        h = F.embedding(ids, self._core.embed_tokens.weight)
        for layer in self._core.layers:
            if layer.gradient_checkpointing and layer.training and torch.is_grad_enabled():
                h = checkpoint(self._layer, layer, h, rotation, attend, use_reentrant=False)
            else:
                h = self._layer(layer, h, rotation, attend)
        h = normalise(h, self.eps) * self._core.norm.weight
        return h if index is None else spread(h, index, size)

    def _layer(self, layer: Any, h: Tensor, rotation: Tensor, attend: Attend) -> Tensor:
        attention, mlp, ranks = layer.self_attn, layer.mlp, (self.heads, self.kv_heads, None)
        joint = (attention.q_proj, attention.k_proj, attention.v_proj)
        apart = learns_beside((*joint, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        y, gain = normalise(h, self.eps), layer.input_layernorm.weight
        qkv = self._linear(y, gain, *self.qkv(layer, merged=not apart))
        qkv = add_beside(qkv, y, joint, gain=gain, heads=ranks) if apart and adapted(*joint) else qkv
        q, k, v = self._heads(qkv, layer, rotation)
        h = h + self._out(attend(q, k, v), attention.o_proj, apart)
        y, gain = normalise(h, self.eps), layer.post_attention_layernorm.weight
        inner = self._linear(y, gain, *self.gate_up(layer, merged=not apart))
        pair = (mlp.gate_proj, mlp.up_proj)
        inner = add_beside(inner, y, pair, gain=gain) if apart and adapted(*pair) else inner
        gate, up = inner.chunk(2, -1)
        return h + self._out(F.silu(gate) * up, mlp.down_proj, apart)

    def _linear(self, y: Tensor, gain: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """W·(gain ∘ y) + b. In float32 the gain goes into W, smaller than y; half precision would round it."""
        return F.linear(y, weight * gain, bias) if self.folds else F.linear(y * gain, weight, bias)

    def _out(self, x: Tensor, module: Any, apart: bool) -> Tensor:
        out = F.linear(x, *linear_parts(module, merged=not apart))
        return add_beside(out, x, (module,)) if apart and adapted(module) else out

    def _heads(self, qkv: Tensor, layer: Any, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [n H D], k [n K D], rotated, and v [n K D] from the joint projection [n, (H+2K)·D]."""
        qk, v = qkv.view(len(qkv), -1, self.head_dim).tensor_split([self.heads + self.kv_heads], 1)
        q_norm = getattr(layer.self_attn, "q_norm", None)
        if q_norm is not None:
            q = pair_rows(q_norm.weight, 1).expand(self.heads, -1)
            k = pair_rows(layer.self_attn.k_norm.weight, 1).expand(self.kv_heads, -1)
            qk = normalise(qk, self.eps) * torch.cat([q, k])
        qk = rotate(qk, rotation)
        return qk[:, : self.heads], qk[:, self.heads :], v

    @property
    def folds(self) -> bool:
        """Whether the norms' gains are multiplied into the weights."""
        return self.head.dtype == torch.float32

    def qkv(self, layer: Any, *, merged: bool = True) -> tuple[Tensor, Tensor | None]:
        """Joint weight [(H+2K)·D, d] and bias of the three projections, q and k in rotation order."""
        attention = layer.self_attn
        parts = [linear_parts(p, merged=merged) for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        weights, biases = [p[0] for p in parts], [p[1] for p in parts]
        weights[:2] = [pair_rows(w, n) for w, n in zip(weights[:2], (self.heads, self.kv_heads), strict=True)]
        if biases[0] is None:
            return torch.cat(weights), None
        biases[:2] = [pair_rows(b, n) for b, n in zip(biases[:2], (self.heads, self.kv_heads), strict=True)]
        return torch.cat(weights), torch.cat(biases)

    def gate_up(self, layer: Any, *, merged: bool = True) -> tuple[Tensor, Tensor | None]:
        """Joint weight and bias of the gate and up projections."""
        (gate, gate_bias), (up, up_bias) = (
            linear_parts(p, merged=merged) for p in (layer.mlp.gate_proj, layer.mlp.up_proj)
        )
        return torch.cat([gate, up]), None if gate_bias is None else torch.cat([gate_bias, up_bias])


def _on_padded(attend: Attend, index: Tensor, size: int) -> Attend:
    """The same attention for tokens without padding: it alone sees the padded layout."""

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return pick(attend(spread(q, index, size), spread(k, index, size), spread(v, index, size)), index)

    return packed
