"""A local model that answers conversations in text: a judge without an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from components.models.chat import render_all
from components.models.load import load_model
from components.types import Message


class Writer:
    """The most probable answer to each conversation, by transformers' own generation.

    Attributes:
        identity: what an answer depends on besides the conversation.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str, max_new_tokens: int = 256, batch: int = 16) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_new_tokens, self.batch_size = max_new_tokens, batch
        self.identity = f"{name} {max_new_tokens}"

    def __call__(self, conversations: Sequence[Sequence[Message]]) -> list[str]:
        """One answer per conversation, in order; what the template pre-fills of it is left out."""
        prompts = [prompt.tokens for prompt in render_all(self.tokenizer, conversations)]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers = [""] * len(prompts)
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            for i, text in zip(part, self._generate([prompts[k] for k in part]), strict=True):
                answers[i] = text
        return answers

    @torch.no_grad()
    def _generate(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        device = self.model.get_input_embeddings().weight.device
        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[*([pad] * (width - len(p))), *p] for p in prompts], device=device)
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        out = self.model.generate(
            input_ids=ids,
            attention_mask=seen,
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            pad_token_id=pad,
            eos_token_id=self.tokenizer.eos_token_id,
        )
        return [
            self.tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for row in out[:, width:].tolist()
        ]


def load_writer(
    *, path: Path | str, max_new_tokens: int = 256, batch: int = 16
) -> Callable[[Sequence[Sequence[Message]]], list[str]]:
    """A `Writer` on the model in a directory, or in the ``model/`` of a stage's artifact."""
    folder = Path(path)
    folder = folder / "model" if (folder / "model").is_dir() else folder
    model, tokenizer = load_model(folder)
    return Writer(model, tokenizer, name=str(folder), max_new_tokens=max_new_tokens, batch=batch)
