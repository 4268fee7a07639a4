"""A reward model: a causal language model with one scalar read off the last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from components.artifacts.disk import naming_errors
from components.models.decoder import make_decoder
from components.models.load import load_model, save_model

Hidden = Callable[[Tensor], Tensor]

MODEL, HEAD = "model", "head.safetensors"


class RewardModel(nn.Module):
    """s(tokens) = w · h_last, with h the backbone's last hidden states and w zero at the start.

    Without a bias: only differences of scores enter the Bradley–Terry loss. The language model's own head takes no part
    and is frozen unless it is tied to the embeddings.

    Args:
        backbone: a causal language model of transformers; trained together with the head.
        hidden: right-padded ids [N, T] → hidden states [N, T, d]; the backbone's own forward if it is left out.
    """

    def __init__(self, backbone: Any, hidden: Hidden | None = None) -> None:
        super().__init__()
        embedding, output = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        if output is not None and output.weight is not embedding.weight:
            output.weight.requires_grad_(False)
        self.model = backbone
        self.head = nn.Linear(embedding.weight.shape[1], 1, bias=False, device=embedding.weight.device)
        nn.init.zeros_(self.head.weight)
        self._hidden = hidden or _own_hidden(backbone)

    def forward(self, sequences: Sequence[Sequence[int]]) -> Float[Tensor, " N"]:
        """Score of each token sequence; differentiable.

        Raises:
            ValueError: an empty sequence has no last token.
        """
        if not sequences:  # a rank without samples still takes part in the sum of gradients
            return self.head.weight.sum() * torch.zeros(0, device=self.head.weight.device)
        ids, last = _pad(sequences, self.head.weight.device)
        states = self._hidden(ids)[torch.arange(len(sequences), device=ids.device), last]
        return self.head(states.to(self.head.weight.dtype)).squeeze(-1)

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]], *, max_tokens: int = 16384) -> list[float]:
        """Scores in the order given; alike lengths share a forward pass of at most ``max_tokens`` padded tokens."""
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        scores = [0.0] * len(sequences)
        part: list[int] = []
        for place, i in enumerate(order):
            part.append(i)
            following = order[place + 1] if place + 1 < len(order) else None
            if following is None or (len(part) + 1) * len(sequences[following]) > max_tokens:
                values = self([sequences[k] for k in part]).tolist()
                for k, value in zip(part, values, strict=True):
                    scores[k] = value
                part = []
        return scores

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Write ``model/`` (a plain Hugging Face directory) and ``head.safetensors``."""
        save_model(self.model, tokenizer, directory / MODEL)
        with naming_errors("write", directory / HEAD):
            save_file({"weight": self.head.weight.detach().cpu().contiguous()}, directory / HEAD)


def load_reward_model(
    directory: Path, device: torch.device | str | None = None, hidden: Callable[[Any], Hidden] | None = None
) -> RewardModel:
    """What `RewardModel.save` wrote, in eval mode.

    Args:
        hidden: makes the hidden-state function from the backbone, e.g. ``lambda m: make_decoder(m).hidden``.

    Raises:
        FileNotFoundError: the directory lacks the backbone or the head.
        ValueError: the head belongs to a backbone of another width.
    """
    if not (directory / HEAD).is_file():
        raise FileNotFoundError(f"{directory / HEAD} does not exist. Fix: give the artifact of a reward_model stage")
    backbone, _ = load_model(directory / MODEL, device)
    scorer = RewardModel(backbone, hidden(backbone) if hidden else None)
    weight = load_file(directory / HEAD)["weight"]
    if weight.shape != scorer.head.weight.shape:
        raise ValueError(
            f"{directory / HEAD} has {weight.shape[1]} weights, the backbone {scorer.head.weight.shape[1]}"
        )
    with torch.no_grad():
        scorer.head.weight.copy_(weight)
    return scorer.eval().requires_grad_(False)


def load_scorer(*, path: Path | str, max_tokens: int = 16384) -> Callable[[Sequence[Sequence[int]]], list[float]]:
    """A function from token sequences (prompt and response) to scores, for a reward's settings node."""
    scorer = load_reward_model(Path(path), hidden=lambda backbone: make_decoder(backbone).hidden)
    return lambda sequences: scorer.score(sequences, max_tokens=max_tokens)


def _pad(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "N T"], Int[Tensor, " N"]]:
    """Right-padded ids and the place of each last token; what pads is never looked at."""
    lengths = [len(sequence) for sequence in sequences]
    if min(lengths) == 0:
        raise ValueError(f"sequence {lengths.index(0)} of {len(lengths)} is empty: there is no last token to score")
    width = max(lengths)
    ids = torch.tensor([[*sequence, *([0] * (width - len(sequence)))] for sequence in sequences], device=device)
    return ids, torch.tensor(lengths, device=device) - 1


def _own_hidden(backbone: Any) -> Hidden:
    body = backbone.get_decoder()
    return lambda ids: body(input_ids=ids, use_cache=False).last_hidden_state
