"""The reference engine: transformers' `generate`, one sequence at a time, stopped and continued around tool calls.

Slow on purpose: it shares no sampling loop, cache or batching with the fast engine, so that it can judge it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from components.rollout.handover import Handover, Turn
from components.rollout.protocol import Completion, Request, check_requests
from components.rollout.sampling import Sampling, choose, mix, uniforms
from components.rollout.torch_engine import end_ids
from components.types import Finish


class HFEngine:
    """`Engine` over ``decoder.model.generate``. Settings as in `TorchEngine`."""

    def __init__(self, decoder: Any, tokenizer: Any, *, eos_ids: Sequence[int] | None = None) -> None:
        self.decoder, self.tokenizer = decoder, tokenizer
        self.eos_ids = end_ids(decoder.model, tokenizer) if eos_ids is None else tuple(eos_ids)

    def generate(
        self, prompts: Sequence[Request], sampling: Sampling, environment: Any = None
    ) -> list[list[Completion]]:
        """See `Engine.generate`."""
        model = self.decoder.model
        vocabulary = self.decoder.head.shape[0]
        check_requests(prompts, sampling, vocabulary, model.config.max_position_embeddings)
        acts = environment is not None and (environment.stop or getattr(environment, "chat", False))
        handover = Handover(self.tokenizer, environment, vocabulary, self.eos_ids) if acts else None
        training = model.training
        model.eval()
        try:
            return [[self._sample(r, seed, sampling, handover) for seed in r.seeds] for r in prompts]
        finally:
            model.train(training)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Copy a state dict into the model."""
        self.decoder.model.load_state_dict(weights)

    def _sample(self, request: Request, seed: int, sampling: Sampling, handover: Handover | None) -> Completion:
        tokens: list[int] = []
        mask: list[bool] = []
        logps: list[float] = []
        turn = Turn()
        finish: Finish = "length"
        limit = sampling.max_new_tokens
        while len(tokens) < limit:
            new, logp = self._write(request, tokens, turn, seed, sampling, handover)
            tokens, mask, logps = tokens + new, mask + [True] * len(new), logps + logp
            if handover is not None and handover.stops(tokens[turn.begin :]):
                added, done, answered = handover.act(request.task, turn, tokens, limit - len(tokens))
                if turn.error:
                    break
                added = added[: limit - len(tokens)]
                tokens, mask, logps = tokens + added, mask + [False] * len(added), logps + [0.0] * len(added)
                if done:
                    finish = "stop"
                    break
                if answered:
                    continue
            if new[-1] in self.eos_ids:
                finish = "stop"
                break
        if handover is not None:
            handover.end_now(request.task, turn)
        return Completion(
            tuple(tokens),
            tuple(mask),
            tuple(logps),
            turn.finish or finish,
            dict(turn.info),
            turn.error,
            tuple(turn.rewards),
            turn.state,
        )

    def _write(
        self,
        request: Request,
        tokens: list[int],
        turn: Turn,
        seed: int,
        sampling: Sampling,
        handover: Handover | None,
    ) -> tuple[list[int], list[float]]:
        """The policy's tokens up to an end token, a stop string or the limit, and their log-probabilities."""
        prefix = [*request.tokens, *tokens]
        chosen: list[int] = []
        logp: list[float] = []

        def force(ids: Tensor, scores: Tensor) -> Tensor:
            position = torch.tensor([len(tokens) + len(chosen)])
            uniform = uniforms(mix(torch.tensor([seed])), position)
            token, value = choose(scores.float().cpu(), uniform, sampling)
            chosen.append(int(token))
            logp.append(float(value))
            return torch.full_like(scores, float("-inf")).index_fill_(1, token.to(scores.device), 0.0)

        def stop(ids: Tensor, scores: Any, **_: Any) -> Tensor:
            hit = chosen[-1] in self.eos_ids
            if handover is not None:
                hit = hit or handover.stops([*tokens, *chosen][turn.begin :])
            return torch.tensor([hit], device=ids.device)

        ids = torch.tensor([prefix], device=self.decoder.head.device)
        self.decoder.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=sampling.max_new_tokens - len(tokens),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=[force],
            stopping_criteria=[stop],
        )
        return chosen, logp
