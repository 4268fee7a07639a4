"""From a causal language model to what training and sampling need of it: hidden states, LM head, key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from components.models.lean import LeanDecoder, lean_obstacle
from components.models.projections import to_device

_CHECK_ROWS, _CHECK_TOKENS = 2, 11


class Cache(Protocol):
    """Keys and values of the sequences being sampled, one row each.

    Attributes:
        mergeable: whether new prompts can join while others are still being decoded; only then there is ``take(row)``,
            which copies a row out, and ``rebuild`` takes such copies (``blocks``) as rows between kept and new ones.
    """

    mergeable: bool

    def rebuild(self, keep: Int[Tensor, " K"], prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> None:
        """Keep these rows in this order, then append ``copies[i]`` rows for each prompt, computed once.

        A prompt is everything that precedes the next token to be fed; it may be empty.
        """
        ...

    def step(self, tokens: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Append one token to every row; logits of the next. ``positions``: tokens already in that row."""
        ...


class Decoder(Protocol):
    """A causal language model seen as states and a head. Weights stay in ``model``; changes there are seen at once."""

    model: Any
    lean: bool

    @property
    def head(self) -> Float[Tensor, "V d"]:
        """LM head weight: logits are ``hidden @ head.T``."""
        ...

    def hidden(self, ids: Int[Tensor, "N T"], length: Int[Tensor, " N"] | None = None) -> Float[Tensor, "N T d"]:
        """States after the final norm; column t predicts token t+1. Causal, rows padded on the right with any valid id.

        ``length``, the rows' real lengths, only saves work: states of padding are then undefined.
        """
        ...

    def hidden_shared(
        self,
        prompt_ids: Int[Tensor, "N P"],
        prompt_len: Int[Tensor, " N"],
        ids: Int[Tensor, "M C"],
        group: Int[Tensor, " M"],
        length: Int[Tensor, " M"] | None = None,
    ) -> Float[Tensor, "M C d"]:
        """States that predict each token of ``ids``, which continue prompt ``group[m]``; a prompt is computed once.

        Args:
            prompt_ids, ids: padded on the right with any valid id.
            prompt_len: real length of each prompt, >= 1.
            length: real length of each row of ``ids``, >= 1; only saves work, states of padding are then undefined.
        """
        ...

    def new_cache(self) -> Cache:
        """An empty cache over the present weights; make a new one after they change."""
        ...


def make_decoder(model: Any) -> Decoder:
    """The fastest decoder that computes what ``model`` computes, checked on a short random input.

    Llama-shaped models (Llama, Mistral, Qwen2, Qwen3; LoRA adapters included) get a lean forward on their own
    weights, others go through transformers' forward: same results, slower.

    Raises:
        ValueError: hidden states and head do not reproduce the model's logits (a logit cap or scale, a head with bias).
    """
    obstacle = lean_obstacle(model)
    decoder: Decoder = LeanDecoder(model) if obstacle is None else ModuleDecoder(model)
    _check(decoder)
    return decoder


class ModuleDecoder:
    """Any transformers causal model through its own forward and cache."""

    lean = False

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def head(self) -> Tensor:
        return self.model.get_output_embeddings().weight

    def hidden(self, ids: Tensor, length: Tensor | None = None) -> Tensor:
        return self.model.get_decoder()(input_ids=ids.to(self.head.device), use_cache=False).last_hidden_state

    def hidden_shared(
        self, prompt_ids: Tensor, prompt_len: Tensor, ids: Tensor, group: Tensor, length: Tensor | None = None
    ) -> Tensor:
        prompt_ids, prompt_len, ids, group = to_device(self.head.device, prompt_ids, prompt_len, ids, group)
        rows, width = ids.shape
        before = prompt_len[group]
        joined = torch.cat([prompt_ids[group], ids[:, :0].new_zeros(rows, width)], 1)
        column = before[:, None] + torch.arange(width, device=ids.device)
        joined = joined.scatter(1, column, ids)
        states = self.hidden(joined)
        return states.gather(1, (column - 1)[..., None].expand(-1, -1, states.shape[-1]))

    def new_cache(self) -> Cache:
        return ModuleCache(self.model)


class ModuleCache:
    """transformers' own cache, prompts padded on the left."""

    mergeable = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._past: Any = None
        accepted = signature(type(model).forward).parameters  # the argument was renamed within transformers 5
        self._past_name = "cache" if "cache" in accepted else "past_key_values"
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=self._device)

    def rebuild(self, keep: Tensor, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> None:
        if not prompts:
            if self._past is not None:
                self._past.batch_select_indices(keep)
            self._mask = self._mask[keep]
            return
        if len(keep):
            raise RuntimeError("a transformers cache takes new prompts only when it holds no rows")
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            if prompt:
                ids[i, width - len(prompt) :] = torch.tensor(prompt)
                mask[i, width - len(prompt) :] = 1
        repeats = torch.tensor(copies, device=self._device)
        ids, mask = ids.to(self._device), mask.to(self._device)
        self._past = None
        if width:
            positions = (mask.cumsum(1) - 1).clamp_(min=0)
            out = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True)
            self._past = out.past_key_values
            self._past.batch_select_indices(torch.arange(len(prompts), device=self._device).repeat_interleave(repeats))
        self._mask = mask.repeat_interleave(repeats, 0)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], 1)
        out = self._model(
            input_ids=tokens[:, None],
            attention_mask=self._mask,
            position_ids=positions[:, None],
            use_cache=True,
            **{self._past_name: self._past},
        )
        self._past = out.past_key_values
        return out.logits[:, -1].float()


@torch.no_grad()
def _check(decoder: Decoder) -> None:
    model = decoder.model
    training = model.training
    model.eval()
    try:
        vocabulary, device = decoder.head.shape[0], decoder.head.device
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(vocabulary, (_CHECK_ROWS, _CHECK_TOKENS), generator=generator).to(device)
        expected = model(input_ids=ids).logits.float()
        got = torch.nn.functional.linear(decoder.hidden(ids), decoder.head).float()
    finally:
        model.train(training)
    gap, scale = (got - expected).abs().max().item(), expected.abs().max().clamp(min=1.0).item()
    tolerance = 1e-4 if decoder.head.dtype == torch.float32 else 5e-2
    if not gap <= tolerance * scale:
        raise ValueError(
            f"{type(model).__name__}: hidden states times LM head differ from the model's own logits by up to "
            f"{gap:.3g}, largest logit {scale:.3g}. Models that cap, scale or bias their logits, or whose code "
            f"differs from their transformers class, are not supported."
        )
