"""Stage: direct preference optimisation – the policy itself learns from pairs, without a reward model or sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from components.losses import preference
from components.models.adapt import load_trainable, save_trained
from components.models.batching import batches, shifted
from components.models.chat import Encoded, encode_examples
from components.models.decoder import make_decoder
from components.models.learner import Learner
from components.models.logprobs import token_logprobs
from components.models.lora import Lora
from components.models.schedule import cosine
from components.rng import derive
from components.runtime import Inputs, Out
from components.stages.pairs import read_pairs, record_ranking
from components.stages.shared import mean
from components.stages.train import train
from components.types import Example, Preference

Pair = tuple[Encoded, Encoded]

TAKES = {"model": "model", "preferences": "preferences"}
GIVES = ("model",)


def dpo(
    inputs: Inputs,
    out: Out,
    *,
    optimizer: Callable[..., Any],
    epochs: int = 1,
    batch_size: int = 32,
    lr: float = 2e-4,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    length_normalised: bool = False,
    nll: float = 0.0,
    lora: Lora | None = None,
    recompute: bool = False,
    log_every: int = 10,
    checkpoint_every: int = 50,
) -> dict[str, float]:
    """Train on `preference.dpo` with the starting policy, frozen, as reference; writes ``model/`` and ``pairs.json``.

    The reference's log-probabilities are computed once, before the first step, and again after a restart: they are a
    function of the inputs alone. ``accuracy`` is the share of held-out pairs whose implicit reward prefers the chosen
    response, with a 95 % Wilson interval; ``pairs.json`` has it by family and defect.

    Args:
        batch_size: pairs per step, over all processes.
        beta: strength of the pull towards the reference; of the mean per token it has to be larger (2 or more).
        label_smoothing: share of pairs believed to be the wrong way round, in [0, ½).
        length_normalised: mean log-probability per token of each response instead of the sum.
        nll: weight of the chosen responses' NLL per token, averaged over pairs. The objective itself only moves chosen
            and rejected apart; both may fall until the policy says neither (arXiv:2404.19733 §2).
        lora: train low-rank adapters beside frozen weights instead of all weights.
        recompute: activations instead of keeping them, see `load_trainable`.

    Raises:
        ValueError: no pairs, or beta or label_smoothing out of range.
    """
    source = inputs["model"].path
    network, tokenizer = load_trainable(source, lora, derive(out.seed, out.name), recompute=recompute, say=out.say)
    decoder = make_decoder(network)
    train_pairs, test_pairs = read_pairs(inputs)
    pairs, held_out = _encode(tokenizer, train_pairs), _encode(tokenizer, test_pairs)
    score = partial(_sequence_logps, decoder, pad=tokenizer.pad_token_id, length_normalised=length_normalised)
    reference, held_out_reference = (_frozen(score, part, batch_size, out) for part in (pairs, held_out))
    # What a response's log-probability has to be divided by to be a mean per token.
    units = torch.tensor([1.0 if length_normalised else float(max(1, sum(a.mask))) for a, _ in pairs])
    lengths = [max(len(a), len(b)) for a, b in pairs]
    plan = [part for epoch in range(epochs) for part in batches(lengths, batch_size, (out.seed, out.name, epoch))]
    schedule = partial(cosine, total=len(plan), warmup=0.1, floor=0.1)
    learner = Learner(network.named_parameters(), optimizer(network.named_parameters(), lr=lr), schedule, out.peers)
    objective = partial(preference.dpo, beta=beta, label_smoothing=label_smoothing)

    def loss_of_step(step: int) -> Tensor:
        mine = out.peers.shard(plan[step])
        chosen, rejected = score([pairs[i] for i in mine])
        loss = objective(chosen, rejected, *reference[:, mine], pairs=len(plan[step]))[0]
        return loss - nll * (chosen / units[mine]).sum() / len(plan[step]) if nll else loss

    loss = train(out, network, learner, len(plan), loss_of_step, log_every=log_every, checkpoint_every=checkpoint_every)
    final = _frozen(score, held_out, batch_size, out)
    margin = beta * ((final[0] - held_out_reference[0]) - (final[1] - held_out_reference[1]))
    if out.peers.is_main:
        save_trained(network, tokenizer, out.path, lora=lora, source=source)
    return {
        "loss": loss,
        **record_ranking(out, test_pairs, (margin > 0).double().tolist()),
        "margin": mean(margin.tolist()),
        "chosen_logp_change": mean((final[0] - held_out_reference[0]).tolist()),
        "pairs": float(len(pairs)),
    }


def dpo_check(settings: Mapping[str, Any]) -> list[str]:
    """What preflight can say of the settings before anything is loaded."""
    problems = []
    if settings["beta"] <= 0:
        problems.append(f"beta: must be positive (got {settings['beta']}). Fix: 0.1 is usual")
    if settings["nll"] < 0:
        problems.append(f"nll: must not be negative (got {settings['nll']}). Fix: 0 is off, 0.2 to 1 is usual")
    if not 0 <= settings["label_smoothing"] < 0.5:
        problems.append(
            f"label_smoothing: must lie in [0, 0.5) (got {settings['label_smoothing']}). "
            "Fix: write the share of pairs that you believe to be the wrong way round"
        )
    return problems


def _encode(tokenizer: Any, pairs: Sequence[Preference]) -> list[Pair]:
    both = [
        Example(pair.task_id, pair.messages, text, tokens=tokens, prompt_tokens=pair.prompt_tokens)
        for pair in pairs
        for text, tokens in ((pair.chosen, pair.chosen_tokens), (pair.rejected, pair.rejected_tokens))
    ]
    encoded = encode_examples(tokenizer, both)
    return list(zip(encoded[::2], encoded[1::2], strict=True))


@torch.no_grad()
def _frozen(
    score: Callable[[Sequence[Pair]], Float[Tensor, "2 P"]], pairs: Sequence[Pair], batch_size: int, out: Out
) -> Float[Tensor, "2 P"]:
    """`_sequence_logps` of all pairs, the work shared by all peers, the same on every rank."""
    mine = out.peers.shard(pairs)
    parts = [score(mine[i : i + batch_size]) for i in range(0, len(mine), batch_size)]
    rows = torch.cat(parts, dim=1).T.tolist() if parts else []
    return torch.tensor(out.peers.unshard(rows)).reshape(-1, 2).T


def _sequence_logps(decoder: Any, pairs: Sequence[Pair], *, pad: int, length_normalised: bool) -> Float[Tensor, "2 P"]:
    """`preference.sequence_logp` of the chosen (row 0) and the rejected (row 1) responses."""
    if not pairs:  # a rank without a share of the batch
        return torch.zeros(2, 0)
    ids, length, targets, trained = shifted([pair[side] for side in (0, 1) for pair in pairs], pad)
    logp = token_logprobs(decoder.hidden(ids, length)[trained], decoder.head, targets[trained])
    spread = torch.zeros(trained.shape, dtype=logp.dtype).masked_scatter(trained, logp.to(trained.device))
    return preference.sequence_logp(spread, trained, length_normalised=length_normalised).view(2, -1)


def dpo_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns."""
    return ["loss", "accuracy", "accuracy_low", "accuracy_high", "margin", "chosen_logp_change", "pairs"]
