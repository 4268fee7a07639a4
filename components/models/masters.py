"""What an optimiser works on: float32 tensors, whatever precision the model computes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Named = Iterable[tuple[str, Tensor]]


class Masters:
    """float32 tensors to optimise: the parameters themselves, or copies of those of lower precision."""

    def __init__(self, named: Named) -> None:
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.masters = {name: p if p.dtype == torch.float32 else p.detach().float() for name, p in trained}
        self._copied = {name: parameter for name, parameter in trained if self.masters[name] is not parameter}

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model's parameters."""
        for name, parameter in self._copied.items():
            parameter.copy_(self.masters[name])

    def state_tensors(self) -> dict[str, Tensor]:
        return {f"master.{name}": self.masters[name].clone() for name in self._copied}

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        for name in self._copied:
            if f"master.{name}" not in tensors:
                raise ValueError(f"optimiser state has no float32 master of {name}: was it saved at another precision?")
            self.masters[name].copy_(tensors[f"master.{name}"])
        self.publish()


def same_shape(named: Mapping[str, Tensor], name: str, value: Tensor, scalar: bool = False) -> Tensor:
    """The parameter that a state tensor belongs to."""
    if name not in named:
        raise ValueError(f"optimiser state of {name!r}, which is not among the parameters trained here")
    expected = () if scalar else tuple(named[name].shape)
    if tuple(value.shape) != expected:
        raise ValueError(f"optimiser state of {name!r} has shape {tuple(value.shape)}, expected {expected}")
    return named[name]
