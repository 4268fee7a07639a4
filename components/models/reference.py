"""The reference policy of a KL term: a frozen copy of the model, or with LoRA the model itself without its adapter."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from components.models.decoder import Decoder, make_decoder
from components.models.lora import has_adapters, load_trained_state, policy_off, trained_state


def make_reference(model: Any, decoder: Decoder) -> FrozenCopy | AdaptersOff:
    """The policy as it is now, to be compared with later; ``decoder`` is the model's."""
    return AdaptersOff(model, decoder) if has_adapters(model) else FrozenCopy(model)


class FrozenCopy:
    """A second copy of all weights.

    Attributes:
        decoder: its forward passes.
    """

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decoder = make_decoder(self.model)

    def refresh(self, model: Any) -> None:
        """Take over the policy's present weights."""
        self.model.load_state_dict(model.state_dict())

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs once the reference was refreshed."""
        return self.model.state_dict()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        self.model.load_state_dict(tensors)


class AdaptersOff:
    """The policy's frozen weights: without its adapter, or since a refresh with the adapter as it was then.

    It is its own ``decoder``; gradients do not pass through it.
    """

    def __init__(self, model: Any, decoder: Decoder) -> None:
        self.model, self._decoder = model, decoder
        self._kept: dict[str, Tensor] = {}

    @property
    def decoder(self) -> AdaptersOff:
        return self

    @property
    def head(self) -> Tensor:
        return self._decoder.head

    @torch.no_grad()
    def hidden(self, ids: Tensor, length: Tensor | None = None) -> Tensor:
        """See `Decoder.hidden`."""
        with self._in_place():
            return self._decoder.hidden(ids, length)

    @torch.no_grad()
    def hidden_shared(
        self, prompt_ids: Tensor, prompt_len: Tensor, ids: Tensor, group: Tensor, length: Tensor | None = None
    ) -> Tensor:
        """See `Decoder.hidden_shared`."""
        with self._in_place():
            return self._decoder.hidden_shared(prompt_ids, prompt_len, ids, group, length)

    def refresh(self, model: Any) -> None:
        """Keep the policy's adapter as it is now."""
        self._kept = {name: tensor.detach().clone() for name, tensor in trained_state(model).items()}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs; nothing before the first refresh."""
        return self._kept

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        mine = trained_state(self.model)
        self._kept = {name: tensor.to(mine[name].device) for name, tensor in tensors.items()}

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """The reference's adapter in the place of the policy's, which comes back unchanged."""
        if not self._kept:
            with policy_off(self.model):
                yield
            return
        present = {name: tensor.detach().clone() for name, tensor in trained_state(self.model).items()}
        load_trained_state(self.model, self._kept)
        try:
            yield
        finally:
            load_trained_state(self.model, present)
