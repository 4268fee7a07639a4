"""Log-probabilities of chosen tokens without keeping a [tokens, vocabulary] matrix around."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_DIRECT = 1 << 24  # logits kept for the backward pass up to this many elements (64 MiB in float32)


def token_logprobs(
    hidden: Float[Tensor, "N d"],
    head: Float[Tensor, "V d"],
    targets: Int[Tensor, " N"],
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> Float[Tensor, " N"]:
    """log softmax(hidden · headᵀ / temperature)[target] per token, in nats; float32 or wider.

    Args:
        hidden: states that predict the targets (flatten and select with the mask first).
        head: LM head weight.
        temperature: the one used for sampling; > 0.
        chunk: tokens whose logits exist at one time. None picks: everything at once while the logits fit 64 MiB
            (then they are kept for the backward pass), else chunks of that size, recomputed in the backward pass.

    Raises:
        ValueError: shapes that do not fit, temperature <= 0 or chunk < 1.
    """
    return token_logprobs_and_entropy(hidden, head, targets, temperature=temperature, chunk=chunk, entropy=False)[0]


def token_logprobs_and_entropy(
    hidden: Float[Tensor, "N d"],
    head: Float[Tensor, "V d"],
    targets: Int[Tensor, " N"],
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy: bool = True,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """`token_logprobs` and the entropy -Σ_v p_v log p_v of each token's distribution (nats); both differentiable.

    With ``entropy=False`` the second tensor is zeros.
    """
    if hidden.dim() != 2 or head.dim() != 2 or hidden.shape[1] != head.shape[1] or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"expected hidden [N, d], head [V, d], targets [N]; got {tuple(hidden.shape)}, {tuple(head.shape)}, "
            f"{tuple(targets.shape)}"
        )
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if chunk is None:
        chunk = max(1, _DIRECT // head.shape[0])
    elif chunk < 1:
        raise ValueError(f"chunk must be at least 1 token, got {chunk}")
    return _Selective.apply(hidden, head, targets.to(hidden.device), 1.0 / temperature, chunk, entropy)  # type: ignore[return-value]


class _Selective(torch.autograd.Function):
    """With z = s·h·Wᵀ, p = softmax(z), H = -Σ p log p:  ∂logp_y/∂z = 1_y - p,  ∂H/∂z = -p (log p + H)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, scale: float, chunk: int, entropy: bool):
        kept, logps, entropies, normalisers = None, [], [], []
        for h, y in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            logits = _logits(h, head, scale)
            normaliser = torch.logsumexp(logits, -1, keepdim=True)
            logps.append((logits.gather(1, y[:, None]) - normaliser)[:, 0])
            normalisers.append(normaliser)
            if entropy:
                logp = logits - normaliser
                entropies.append(-(logp.exp() * logp).sum(-1))
            kept = logits
        logp = torch.cat(logps) if logps else _logits(hidden, head, scale).sum(-1)
        all_entropy = torch.cat(entropies) if entropies else torch.zeros_like(logp)
        one_chunk = len(logps) == 1 and any(ctx.needs_input_grad[:2])
        normaliser = torch.cat(normalisers) if normalisers else logp[:, None]
        ctx.save_for_backward(hidden, head, targets, normaliser, all_entropy, kept if one_chunk else None)
        ctx.scale, ctx.chunk, ctx.entropy = scale, chunk, entropy
        return logp, all_entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        grad_logp, grad_entropy = grads
        hidden, head, targets, normalisers, entropies, kept = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits = kept if kept is not None else _logits(hidden[part], head, ctx.scale)
            logp = logits - normalisers[part]
            grad = logp.exp()
            if ctx.entropy:
                inner = (logp + entropies[part, None]).mul_(grad_entropy[part, None]).add_(grad_logp[part, None])
                grad.mul_(inner).neg_()
            else:
                grad.mul_(-grad_logp[part, None])
            grad.scatter_add_(1, targets[part, None], grad_logp[part, None])
            grad = grad.mul_(ctx.scale).to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad, head, out=grad_hidden[part])
            if grad_head is not None:
                grad_head.addmm_(grad.t(), hidden[part])
        return grad_hidden, grad_head, None, None, None, None


def _logits(hidden: Tensor, head: Tensor, scale: float) -> Tensor:
    logits = torch.mm(hidden, head.t())
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits if scale == 1.0 else logits.mul_(scale)
