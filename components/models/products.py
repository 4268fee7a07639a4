"""Products with weights that stay as they are while sequences are decoded, laid out once for that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PAYS_FROM = 1 << 18  # weights; a call costs some 15 µs more, which smaller products don't win back
_ROWS = 64  # the batch that oneDNN chooses its layout for


class Product:
    """x ↦ x·Wᵀ + b for W [out, in], kept transposed."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self._bias = bias
        self._lay_out(weight)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x·Wᵀ + b [n, out]; ``out`` may be written to, and then is what is returned."""
        y = torch.mm(x, self._weight, out=out)
        return y if self._bias is None else y.add_(self._bias)

    def onto(self, sums: Tensor, x: Tensor) -> Tensor:
        """sums += x·Wᵀ + b, in place."""
        sums.addmm_(x, self._weight)
        return sums if self._bias is None else sums.add_(self._bias)

    def _lay_out(self, weight: Tensor) -> None:
        self._weight = weight.t().contiguous()


class BlockedProduct(Product):
    """The same in oneDNN's blocked layout: 1.1 (256 rows) to 2 times (8 rows) as fast for large float32 weights.

    As with the plain one, a row's result does not depend, to the bit, on how many rows are beside it (from 2).
    """

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    def onto(self, sums: Tensor, x: Tensor) -> Tensor:
        return sums.add_(self(x))

    def _lay_out(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)


def product(weight: Any, bias: Tensor | None = None) -> Product:
    """The faster of the two for these weights on this machine."""
    blocked = (
        weight.numel() >= _PAYS_FROM
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.get_num_threads() == 1
        and _blocks()
    )
    return BlockedProduct(weight, bias) if blocked else Product(weight, bias)


def _blocks() -> bool:
    """Whether PyTorch was built with oneDNN's blocked layouts for this processor."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
