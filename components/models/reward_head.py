"""A reward model: a causal language model with one scalar read off the last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from components.artifacts.disk import naming_errors
from components.models.chat import encode_examples
from components.models.decoder import make_decoder
from components.models.load import load_model, load_tokenizer, save_model
from components.types import Example, Message

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

    def save(self, directory: Path, tokenizer: Any, *, part: str = "response") -> None:
        """Write ``model/`` (a plain Hugging Face directory) and ``head.safetensors``; ``part``: what it judges."""
        save_model(self.model, tokenizer, directory / MODEL)
        with naming_errors("write", directory / HEAD):
            weight = self.head.weight.detach().cpu().contiguous()
            save_file({"weight": weight}, directory / HEAD, metadata={"part": part})


def load_reward_model(
    directory: Path, device: torch.device | str | None = None, hidden: Callable[[Any], Hidden | None] | None = None
) -> RewardModel:
    """What `RewardModel.save` wrote, in eval mode.

    Args:
        hidden: makes the hidden-state function from the backbone, e.g. `hidden_of`.

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


def hidden_of(backbone: Any) -> Hidden | None:
    """The fastest way to the backbone's hidden states that is known to be right; None for its own forward.

    A reward model reads no logits, so a backbone that caps, scales or biases them, which a decoder refuses, will do.
    """
    try:
        return make_decoder(backbone).hidden
    except ValueError:
        return None


class Scorer:
    """A reward model as a function from token sequences (prompt and response) to scores.

    Attributes:
        part: the part of a response that it was trained to judge, "response" or "answer".
    """

    def __init__(self, model: RewardModel, part: str, max_tokens: int) -> None:
        self.model, self.part, self.max_tokens = model, part, max_tokens

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        return self.model.score(sequences, max_tokens=self.max_tokens)


class TextScorer(Scorer):
    """A reward model as a function from (messages, response text) pairs to scores, with its own tokenizer."""

    def __init__(self, model: RewardModel, tokenizer: Any, part: str, max_tokens: int) -> None:
        super().__init__(model, part, max_tokens)
        self.tokenizer = tokenizer

    def __call__(self, texts: Sequence[tuple[Sequence[Message], str]]) -> list[float]:  # type: ignore[override]
        examples = [Example(str(i), tuple(messages), text) for i, (messages, text) in enumerate(texts)]
        encoded = encode_examples(self.tokenizer, examples)
        return super().__call__([[*e.prompt, *e.tokens] for e in encoded])


def load_scorer(*, path: Path | str, max_tokens: int = 16384) -> Scorer:
    """The scorer of a `reward_model` stage's artifact, for a policy that has the same tokenizer."""
    return Scorer(load_reward_model(Path(path), hidden=hidden_of), _part(Path(path)), max_tokens)


def load_text_scorer(*, path: Path | str, max_tokens: int = 16384) -> TextScorer:
    """The scorer of a `reward_model` stage's artifact, for a policy with any tokenizer."""
    model = load_reward_model(Path(path), hidden=hidden_of)
    tokenizer = load_tokenizer(Path(path) / MODEL)
    return TextScorer(model, tokenizer, _part(Path(path)), max_tokens)


def _part(directory: Path) -> str:
    with safe_open(directory / HEAD, framework="pt") as stored:
        return (stored.metadata() or {}).get("part", "response")


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
