"""The rollout engine on plain PyTorch: a prompt computed once for all its samples, a batch that is kept full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from components.rollout.decoding import Run
from components.rollout.handover import Handover
from components.rollout.protocol import Completion, Request, check_requests
from components.rollout.sampling import Sampling


class TorchEngine:
    """`Engine` over a decoder (`components.models.decoder.Decoder`) that shares its weights with the trainer.

    Args:
        max_batch: sequences decoded at one time; changes speed and memory, not completions.
        compact_at: finished rows are dropped once at most this share of the batch is alive.
        eos_ids: ids that end the policy's turn; None takes the model's generation config and the tokenizer's.

    Raises:
        ValueError: max_batch < 1, no end token anywhere.
    """

    def __init__(
        self,
        decoder: Any,
        tokenizer: Any,
        *,
        max_batch: int = 256,
        compact_at: float = 0.75,
        eos_ids: Sequence[int] | None = None,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1 sequence, got {max_batch}")
        self.decoder, self.tokenizer = decoder, tokenizer
        self.max_batch, self.compact_at = max_batch, compact_at
        self.eos_ids = end_ids(decoder.model, tokenizer) if eos_ids is None else tuple(eos_ids)
        self._handover: tuple[Any, Handover] | None = None

    def generate(
        self, prompts: Sequence[Request], sampling: Sampling, environment: Any = None
    ) -> list[list[Completion]]:
        """See `Engine.generate`."""
        model = self.decoder.model
        check_requests(prompts, sampling, self.decoder.head.shape[0], model.config.max_position_embeddings)
        training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                return Run(self, prompts, sampling, self._bind(environment)).results()
        finally:
            model.train(training)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Copy a state dict into the model, unless it is the model's own."""
        own = self.decoder.model.state_dict()
        if any(name not in weights or weights[name].data_ptr() != value.data_ptr() for name, value in own.items()):
            self.decoder.model.load_state_dict(weights)

    def _bind(self, environment: Any) -> Handover | None:
        if environment is None or not (environment.stop or getattr(environment, "chat", False)):
            return None
        if self._handover is None or self._handover[0] is not environment:
            handover = Handover(self.tokenizer, environment, self.decoder.head.shape[0], self.eos_ids)
            self._handover = (environment, handover)
        return self._handover[1]


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a turn, from the model's generation config and the tokenizer; never inferred from padding."""
    named = getattr(model.generation_config, "eos_token_id", None)
    every = [*(named if isinstance(named, list | tuple) else [named]), tokenizer.eos_token_id]
    ids = {int(i) for i in every if i is not None}
    if not ids:
        raise ValueError("neither the model's generation config nor the tokenizer names an end token: pass eos_ids")
    return tuple(sorted(ids))
