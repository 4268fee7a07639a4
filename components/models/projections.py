"""Small pieces shared by the lean forward and its cache: effective weights, row order for rotations."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def pair_rows(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head in the order 0, D/2, 1, D/2+1, …: the two halves that rotate together become neighbours."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def linear_parts(module: Any) -> tuple[Tensor, Any]:
    """Weight and bias a linear layer multiplies with, low-rank adapters added in."""
    base = getattr(module, "base_layer", None)
    if base is None:
        return module.weight, module.bias
    weight = base.weight
    if not (module.merged or module.disable_adapters):
        for adapter in module.active_adapters:
            if adapter in module.lora_A:
                weight = weight + module.get_delta_weight(adapter)
    return weight, base.bias


def is_linear(module: Any) -> bool:
    """Whether `linear_parts` says all there is to say: plain, or with low-rank adapters and no dropout."""
    if type(module) is nn.Linear:
        return True
    plain = type(getattr(module, "base_layer", None)) is nn.Linear and hasattr(module, "lora_A")
    if not plain or any(getattr(module, "use_dora", {}).values()):
        return False
    return all(isinstance(d, nn.Identity) or getattr(d, "p", 1.0) == 0.0 for d in module.lora_dropout.values())
