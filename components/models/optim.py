"""Optimisers: AdamW, and Muon for hidden matrices with AdamW for the rest.

Both take named parameters (those that need no gradient are left out) and keep their state as a flat
``{name: tensor}`` that goes into safetensors. Parameters of lower precision get float32 masters: at rates like 1e-6 an
update is smaller than half a bfloat16 unit of the weight and would vanish.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from components.models.masters import Masters, Named, same_shape
from components.runtime import Peers

# Coefficients of the quintic that pushes singular values towards 1 (Jordan et al., Muon, 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Optimizer(Protocol):
    """What the learner needs.

    ``step`` makes one update from float32 gradients by name, at ``multiplier`` times the base rate. All ``peers`` hold
    the same gradients and call it together: they may share the work, and must end with the same weights.
    """

    lr: float

    def step(self, gradients: Mapping[str, Tensor], multiplier: float, peers: Peers) -> None: ...

    def state_tensors(self) -> dict[str, Tensor]: ...

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None: ...


class AdamW:
    """Adam with decoupled weight decay (arXiv:1711.05101), torch's own implementation.

    Args:
        lr: base learning rate.
        betas: decay of the first and second moment.
        weight_decay: per step, times the learning rate.
    """

    def __init__(
        self,
        named: Named,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.lr = _positive("lr", lr)
        self._weights = Masters(named)
        self._adam = None
        if tensors := list(self._weights.masters.values()):
            self._adam = torch.optim.AdamW(
                tensors, lr=lr, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay, fused=True
            )

    def step(self, gradients: Mapping[str, Tensor], multiplier: float, peers: Peers) -> None:
        if self._adam is None:
            return
        for name, master in self._weights.masters.items():
            master.grad = gradients[name]
        self._adam.param_groups[0]["lr"] = self.lr * multiplier
        self._adam.step()
        self._weights.publish()

    def state_tensors(self) -> dict[str, Tensor]:
        """``<slot>.<name>`` for the two moments and the step count (none before the first step), and the masters."""
        state = self._adam.state if self._adam is not None else {}
        slots = {
            f"{slot}.{name}": value.clone()
            for name, master in self._weights.masters.items()
            for slot, value in state.get(master, {}).items()
        }
        return slots | self._weights.state_tensors()

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state_tensors`.

        Raises:
            ValueError: state of other parameters, or of other shapes.
        """
        self._weights.load_state_tensors(tensors)
        if self._adam is not None:
            self._adam.state.clear()
        for key, value in tensors.items():
            slot, name = key.split(".", 1)
            if slot == "master":
                continue
            master = same_shape(self._weights.masters, name, value, scalar=slot == "step")
            assert self._adam is not None
            self._adam.state[master][slot] = value.to(master.device, copy=True)


class Muon:
    """Momentum, orthogonalised by Newton–Schulz, for 2-D hidden matrices; AdamW for embeddings, heads and vectors.

    For a matrix W of shape [rows, cols] with gradient G:
    ``B ← βB + (1-β)G``, ``U = (1-β)G + βB``, ``W ← (1 - ηλ)W - η·√max(1, rows/cols)·NS(U)``, η = ``ratio``·lr.
    NS is five quintic iterations in float32, on all matrices of one shape (up to transposition) at once, and each rank
    iterates its share of them. torch.optim.Muon computes the same update on every rank, one matrix at a time and always
    in bfloat16, which is slower by two orders of magnitude on a CPU without bfloat16 units.

    Args:
        lr: base learning rate of the AdamW part.
        ratio: Muon's learning rate in units of ``lr``.
        momentum: β.
        weight_decay: λ, for both parts.
        adam_only: parts of names that are never given to Muon.

    Source: Jordan et al., "Muon: an optimizer for hidden layers", 2024; scale as published there.
    """

    def __init__(
        self,
        named: Named,
        *,
        lr: float,
        ratio: float = 5.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        adam_only: tuple[str, ...] = ("embed", "head"),
    ) -> None:
        self.lr = _positive("lr", lr)
        self.ratio, self.momentum, self.weight_decay = _positive("ratio", ratio), momentum, weight_decay
        everything = list(named)
        hidden = [(n, p) for n, p in everything if p.ndim == 2 and not any(part in n for part in adam_only)]
        names = {name for name, _ in hidden}
        rest = [(n, p) for n, p in everything if n not in names]
        self._adam = AdamW(rest, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self._weights = Masters(hidden)
        by_shape: dict[tuple[int, ...], dict[str, Tensor]] = defaultdict(dict)
        for name, matrix in self._weights.masters.items():
            by_shape[tuple(sorted(matrix.shape))][name] = matrix
        self._batches = [_Batch(list(group), list(group.values())) for group in by_shape.values()]
        # All updates in one piece: what the ranks computed is put together by one sum.
        self._updates = torch.cat([batch.momentum.flatten() for batch in self._batches] or [torch.zeros(0)])
        start = 0
        for batch in self._batches:
            batch.update = self._updates[start : start + batch.momentum.numel()].view_as(batch.momentum)
            start += batch.momentum.numel()

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], multiplier: float, peers: Peers) -> None:
        self._adam.step(gradients, multiplier, peers)
        if not self._batches:
            return
        self._updates.zero_()
        for batch in self._batches:
            gradient = batch.stack([gradients[name] for name in batch.names])
            batch.momentum.lerp_(gradient, 1 - self.momentum)
            mine = slice(peers.rank, None, peers.world_size)
            batch.update[mine] = orthogonalize(torch.lerp(gradient[mine], batch.momentum[mine], self.momentum))
        peers.all_reduce(self._updates)
        lr = self.lr * self.ratio * multiplier
        for batch in self._batches:
            for matrix, flat, step in zip(batch.matrices, batch.transposed, batch.update, strict=True):
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.mul_(1 - lr * self.weight_decay).add_(step.T if flat else step, alpha=-lr * scale)
        self._weights.publish()

    def state_tensors(self) -> dict[str, Tensor]:
        """Adam's, the masters, and ``momentum.<name>`` in the orientation of the matrix."""
        state = self._adam.state_tensors() | self._weights.state_tensors()
        for batch in self._batches:
            for name, flat, momentum in zip(batch.names, batch.transposed, batch.momentum, strict=True):
                state[f"momentum.{name}"] = (momentum.T if flat else momentum).clone(
                    memory_format=torch.contiguous_format
                )
        return state

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state_tensors`.

        Raises:
            ValueError: state of other parameters, or of other shapes.
        """
        masters = self._weights.masters
        mine = {key: value for key, value in tensors.items() if key.split(".", 1)[1] in masters}
        self._adam.load_state_tensors({key: value for key, value in tensors.items() if key not in mine})
        self._weights.load_state_tensors(mine)
        momenta = {k.removeprefix("momentum."): v for k, v in mine.items() if k.startswith("momentum.")}
        for name, value in momenta.items():
            same_shape(masters, name, value)
        for batch in self._batches:
            for name, flat, momentum in zip(batch.names, batch.transposed, batch.momentum, strict=True):
                if name not in momenta:
                    raise ValueError(f"optimiser state has no momentum of {name}: it was saved for another model")
                momentum.copy_(momenta[name].T if flat else momenta[name])


class _Batch:
    """Matrices of one shape up to transposition, lying on their longer side, as one [n, rows ≤ cols] batch."""

    def __init__(self, names: list[str], matrices: list[Tensor]) -> None:
        self.names, self.matrices = names, matrices
        self.transposed = [matrix.shape[0] > matrix.shape[1] for matrix in matrices]
        shape = sorted(matrices[0].shape)
        self.momentum = torch.zeros(len(matrices), *shape, device=matrices[0].device)
        self.update = self.momentum

    def stack(self, matrices: list[Tensor]) -> Tensor:
        return torch.stack([m.T if flat else m for m, flat in zip(matrices, self.transposed, strict=True)])


def orthogonalize(batch: Tensor, steps: int = 5) -> Tensor:
    """Newton–Schulz: [n, rows, cols] with rows ≤ cols → about U·Vᵀ of each singular value decomposition.

    ``X ← aX + (bA + cA²)X`` with A = X·Xᵀ, from X = batch / ‖batch‖_F. Singular values end near 1 (0.7 to 1.2).
    """
    a, b, c = NEWTON_SCHULZ
    x = batch / (torch.linalg.matrix_norm(batch, keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(-1, -2)
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, poly, x, beta=a)
    return x


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value
