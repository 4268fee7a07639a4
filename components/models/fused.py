"""Pieces of the lean forward, some with hand-written gradients that take fewer passes over memory."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def normalise(x: Float[Tensor, "*n d"], eps: float) -> Float[Tensor, "*n d"]:
    """x / sqrt(mean(x²) + eps) over the last axis, computed in float32 (arXiv:1910.07467 without the gain)."""
    return _Normalise.apply(x, eps)  # type: ignore[return-value]


def rotate(x: Float[Tensor, "n h d"], rotation: Complex[Tensor, "n _h half"]) -> Float[Tensor, "n h d"]:
    """Multiply the pairs (0,1), (2,3), … of the last axis, as complex numbers, by ``rotation`` (arXiv:2104.09864)."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


def spread(x: Float[Tensor, "n c"], index: Int[Tensor, " n"], size: int) -> Float[Tensor, "size c"]:
    """Zeros with row i of x at row index[i]; indices are distinct."""
    return _Spread.apply(x, index, size)  # type: ignore[return-value]


def pick(x: Float[Tensor, "size c"], index: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
    """Rows of x; unlike indexing, the gradient relies on the indices being distinct."""
    return _Pick.apply(x, index)  # type: ignore[return-value]


class _Normalise(Function):
    """With y = x·r, r = (mean x² + ε)^-½:  dx = r·(g - y·mean(g∘y))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        y = (x * scale).to(x.dtype)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,) = grads
        y, scale = ctx.saved_tensors
        mean = (g * y).mean(-1, keepdim=True, dtype=torch.float32)
        return torch.addcmul(g.float(), y.float(), mean, value=-1).mul_(scale).to(y.dtype), None


class _Spread(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, index, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].index_select(0, ctx.saved_tensors[0]), None, None


class _Pick(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = len(x)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,) = grads
        return g.new_zeros(ctx.size, *g.shape[1:]).index_copy_(0, ctx.saved_tensors[0], g), None
