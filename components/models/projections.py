"""Shared by the lean forward and its cache: effective weights, low-rank adapters, row order for rotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pair_rows(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head in the order 0, D/2, 1, D/2+1, …: the two halves that rotate together become neighbours."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def to_device(device: torch.device, *tensors: Any) -> Any:
    """The tensors on a device, where they aren't there already; None stays None."""
    return tuple(None if tensor is None else tensor.to(device) for tensor in tensors)


def linear_parts(module: Any, *, merged: bool = True) -> tuple[Tensor, Any]:
    """Weight and bias a linear layer multiplies with, low-rank adapters added in.

    Args:
        merged: False leaves the adapters out; `beside` gives their part.
    """
    base = getattr(module, "base_layer", None)
    if base is None:
        return module.weight, module.bias
    weight = base.weight
    if merged:
        for adapter in _active(module):
            weight = (weight + module.get_delta_weight(adapter)).to(base.weight.dtype)
    return weight, base.bias


def learns_beside(modules: Sequence[Any]) -> bool:
    """Whether gradients are wanted of adapters whose base weights need none: then these are best left unmerged.

    Merging costs the gradient of a full weight matrix, which is as much work as training it.
    """
    if not torch.is_grad_enabled() or any(linear_parts(module, merged=False)[0].requires_grad for module in modules):
        return False
    return adapted(*modules)


def add_beside(
    out: Tensor,
    x: Tensor,
    modules: Sequence[Any],
    *,
    gain: Tensor | None = None,
    heads: Sequence[int | None] | None = None,
) -> Tensor:
    """``out`` + Σ over adapters of s·B·A·(gain ∘ x) of each module, side by side: [n, Σ out].

    Two products whatever the number of modules: the B of several stand in one block-diagonal matrix.

    Args:
        out: what the modules' own weights give.
        heads: for each module the heads whose rows are taken in rotation order (see `pair_rows`), or None.
    """
    downs, ups = [], []
    for module, count in zip(modules, heads or [None] * len(modules), strict=True):
        own = [out.new_zeros(linear_parts(module, merged=False)[0].shape[0], 0)]
        for adapter in _active(module):
            down, up = module.lora_A[adapter].weight, module.lora_B[adapter].weight * module.scaling[adapter]
            downs.append((down if gain is None else down * gain).to(x.dtype))
            own.append((up if count is None else pair_rows(up, count)).to(x.dtype))
        ups.append(torch.cat(own, 1))
    up = ups[0] if len(ups) == 1 else torch.block_diag(*ups)
    return torch.addmm(out, F.linear(x, torch.cat(downs)), up.t())


def is_linear(module: Any) -> bool:
    """Whether `linear_parts` says all there is to say: plain, or with low-rank adapters and no dropout."""
    if type(module) is nn.Linear:
        return True
    plain = type(getattr(module, "base_layer", None)) is nn.Linear and hasattr(module, "lora_A")
    if not plain or any(getattr(module, "use_dora", {}).values()):
        return False
    return all(isinstance(d, nn.Identity) or getattr(d, "p", 1.0) == 0.0 for d in module.lora_dropout.values())


def adapted(*modules: Any) -> bool:
    """Whether any of the modules has an adapter that takes part."""
    return any(_active(module) for module in modules)


def _active(module: Any) -> list[str]:
    """Adapters that take part; one whose scale is 0 does not."""
    if not hasattr(module, "base_layer") or module.merged or module.disable_adapters:
        return []
    return [name for name in module.active_adapters if name in module.lora_A and module.scaling[name]]
