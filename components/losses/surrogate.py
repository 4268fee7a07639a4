"""Policy losses per token. A surrogate names what it needs: ``log_ratio``, ``logp``, ``advantage``, ``mask``.

logp and mask are [N, T]; log-ratio and advantage are [N, S]: S = T, or 1 where the tokens of a rollout share them.
Advantage is constant with respect to θ. The caller spreads the result over the tokens and sets it to 0 where masked; it
has to be finite there. r = exp(log_ratio), the log-ratio clamped to ±20 nats so that r stays finite (beyond it no
gradient flows).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import hardtanh, relu, threshold

from components.losses.ratio import masked_mean

MAX_LOG_RATIO = 20.0


def clip(
    log_ratio: Float[Tensor, "N S"],
    advantage: Float[Tensor, "N S"],
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual: float | None = None,
) -> Float[Tensor, "N S"]:
    """PPO's pessimistic bound: max(−r·A, −clip(r, 1−eps_low, 1+eps_high)·A).

    Which is −A·min(r, 1+eps_high) for A > 0 and −A·max(r, 1−eps_low) for A < 0. On the policy that sampled, r = 1: the
    value is −A (about 0 on average), the gradient is not 0.

    Args:
        eps_low, eps_high: trust region around 1; equal in PPO, wider above in DAPO. eps_low ≥ 1 leaves the lower side
            open (R1's ε = 10).
        dual: c > 1 bounds the loss of a negative advantage by −c·A (arXiv:1912.09729 eq. 5); None for no bound.

    Raises:
        ValueError: a bound that is not positive, or dual ≤ 1.

    Source: arXiv:1707.06347 eq. 7; asymmetric bounds, arXiv:2503.14476 §3.1.
    """
    if eps_low <= 0 or eps_high <= 0:
        raise ValueError(f"surrogate clip: eps_low and eps_high must be positive, got {eps_low} and {eps_high}")
    if dual is not None and dual <= 1:
        raise ValueError(f"surrogate clip: dual must be above 1 (3.0 is usual) or null, got {dual}")
    objective, bound = _objective(importance(log_ratio), advantage, eps_low, eps_high)
    if dual is not None:
        objective = threshold(objective, -dual, -dual)
    # The smaller of objective and bound: clipping can only make an update look worse. Written with relu, whose
    # gradient is one operation where that of torch.minimum is five.
    return -advantage.abs() * (bound - relu(bound - objective))


def _objective(ratio: Tensor, advantage: Tensor, eps_low: float, eps_high: float) -> tuple[Tensor, Tensor]:
    """(r·sign(A), the largest that it may become): 1 + eps_high for A > 0, −(1 − eps_low) for A < 0."""
    side = advantage.sign()
    return side * ratio, side.mul(1 + (eps_high - eps_low) / 2).add_((eps_high + eps_low) / 2)


def cispo(
    log_ratio: Float[Tensor, "N S"], logp: Float[Tensor, "N T"], advantage: Float[Tensor, "N S"], *, cap: float = 5.0
) -> Float[Tensor, "N S"]:
    """−sg(min(r, cap))·A·lp: the importance weight is capped, no token loses its gradient (arXiv:2506.13585 eq. 4).

    Args:
        cap: upper bound of r itself, not of r − 1; the lower side is open.
    """
    return -importance(log_ratio.detach()).clamp_(max=cap) * advantage * logp


def sapo(
    log_ratio: Float[Tensor, "N S"],
    advantage: Float[Tensor, "N S"],
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Float[Tensor, "N S"]:
    """−A·(4/τ)·sigmoid(τ(r − 1)): a soft gate in place of the clip, with slope 1 at r = 1 (arXiv:2511.20347).

    Args:
        tau_positive, tau_negative: τ for A > 0 and for the rest; a larger τ closes the gate sooner.

    Raises:
        ValueError: τ not positive.
    """
    if tau_positive <= 0 or tau_negative <= 0:
        raise ValueError(f"surrogate sapo: tau must be positive, got {tau_positive} and {tau_negative}")
    tau = advantage.sign().mul_((tau_positive - tau_negative) / 2).add_((tau_positive + tau_negative) / 2)
    return (-4 * advantage / tau) * torch.sigmoid(tau * (importance(log_ratio) - 1))


def gmpo(
    log_ratio: Float[Tensor, "N S"],
    advantage: Float[Tensor, "N S"],
    mask: Bool[Tensor, "N T"],
    *,
    bound: float = 0.4,
) -> Float[Tensor, "N S"]:
    """−A·exp(mean_t clamp(d_t, ±bound)) per rollout: the geometric mean of clipped token ratios (arXiv:2507.20673).

    Takes token log-ratios. The clamp is on both sides for both signs of A, so it is not a pessimistic bound.
    """
    inside = hardtanh(log_ratio, -bound, bound)
    return -advantage * masked_mean(inside, mask).exp()


def reinforce(logp: Float[Tensor, "N T"], advantage: Float[Tensor, "N S"]) -> Float[Tensor, "N S"]:
    """−A·lp: the plain policy gradient, unbiased only for the policy that sampled."""
    return -advantage * logp


def reinforce_ratio(
    log_ratio: Float[Tensor, "N S"], logp: Float[Tensor, "N T"], advantage: Float[Tensor, "N S"]
) -> Float[Tensor, "N S"]:
    """−sg(r)·A·lp: policy gradient with an unclipped importance weight.

    With ratio and aggregate ``sequence_sum`` its gradient is that of −A·π_θ(o)/π_old(o), RLOO's objective
    (arXiv:2402.14740): Σ_t ∇lp_t is the gradient of the whole response's log-probability.
    """
    return -importance(log_ratio.detach()) * advantage * logp


def importance(log_ratio: Float[Tensor, "N S"]) -> Float[Tensor, "N S"]:
    """r = exp(log_ratio), finite."""
    return hardtanh(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


# -- which tokens with an advantage get no gradient: of a surrogate's arguments and settings → Bool[Tensor, "N T"]; None
# where every token keeps some


def _clip_stops(log_ratio: Tensor, advantage: Tensor, *, eps_low: float, eps_high: float, dual: float | None) -> Tensor:
    objective, bound = _objective(log_ratio.exp(), advantage, eps_low, eps_high)
    return objective > bound if dual is None else (objective > bound) | (objective < -dual)


def _gmpo_stops(log_ratio: Tensor, advantage: Tensor, *, bound: float) -> Tensor:
    return (log_ratio.abs() > bound) & (advantage != 0)


STOPS: Mapping[Callable[..., Tensor], Callable[..., Tensor] | None] = MappingProxyType(
    {clip: _clip_stops, gmpo: _gmpo_stops, **dict.fromkeys((cispo, sapo, reinforce, reinforce_ratio))}
)
