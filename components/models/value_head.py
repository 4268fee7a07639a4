"""A critic: a causal language model with one value per response token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.models.decoder import make_decoder


class ValueModel(nn.Module):
    """V_t = w · h_t + b, with h_t the last hidden state *before* token t; w and b zero at the start.

    The language model's own head takes no part and is frozen unless it is tied to the embeddings.

    Args:
        backbone: a causal language model of transformers, with or without LoRA adapters; what of it needs a gradient is
            trained together with the head.
    """

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        embedding, output = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        if output.weight is not embedding.weight:
            output.weight.requires_grad_(False)
        self.model = backbone
        self._decoder = make_decoder(backbone)
        width, device = self._decoder.head.shape[1], self._decoder.head.device
        self.head = nn.Linear(width, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        prompt_ids: Int[Tensor, "B P"],
        prompt_len: Int[Tensor, " B"],
        ids: Int[Tensor, "M C"],
        group: Int[Tensor, " M"],
        mask: Bool[Tensor, "M C"],
        length: Int[Tensor, " M"] | None = None,
    ) -> Float[Tensor, "M C"]:
        """Value of the state before each token of ``ids``, 0 outside the mask; differentiable.

        Arguments as in `Decoder.hidden_shared`.
        """
        states = self._decoder.hidden_shared(prompt_ids, prompt_len, ids, group, length)
        value = self.head(states[mask].float()).squeeze(-1).to(mask.device)
        return torch.zeros(ids.shape, device=mask.device).masked_scatter(mask, value)

    def trained_state(self) -> dict[str, Tensor]:
        """The parameters that training changes: all that a checkpoint needs."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    @torch.no_grad()
    def load_trained_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `trained_state` of a critic that was built alike.

        Raises:
            ValueError: other parameters.
        """
        mine = self.trained_state()
        if differing := sorted(mine.keys() ^ tensors.keys()):
            raise ValueError(f"the critic was saved with other parameters: {differing[0]} is only on one side")
        for name, parameter in mine.items():
            parameter.copy_(tensors[name])
