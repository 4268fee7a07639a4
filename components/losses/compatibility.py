"""Combinations of pieces that run and cannot work."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from components.losses import advantage, aggregate, ratio, surrogate
from components.losses.supply import base, name_of, parameters, required

if TYPE_CHECKING:
    from components.losses.policy import Algorithm

_GSPO_BAND = 0.05
_GROUP_RELATIVE = (advantage.group_norm, advantage.group_center, advantage.leave_one_out)
_SUPPLIED = {
    "advantage": {"reward", "group", "valid", "mask", "penalty", "value", "all_reduce"},
    "surrogate": {"log_ratio", "logp", "advantage", "mask"},
}


def check(algorithm: "Algorithm", *, beta: float | None = None, group_size: int | None = None) -> list[str]:
    """Messages, each with the offending values, the reason and the remedy."""
    return [
        *_pieces(algorithm),
        *_levels(algorithm),
        *_clipping(algorithm),
        *_kl(algorithm, beta),
        *_rest(algorithm, group_size),
    ]


def _pieces(algorithm: "Algorithm") -> Iterator[str]:
    for piece, supplied in _SUPPLIED.items():
        function = getattr(algorithm, piece)
        for name in required(function):
            if name not in supplied:
                yield (
                    f"{piece}: {name_of(function)} asks for {name!r}, which is neither set in its node nor one of "
                    f"{', '.join(sorted(supplied))}. Set it, or rename the argument."
                )


def _levels(algorithm: "Algorithm") -> Iterator[str]:
    whole = base(algorithm.ratio) in (ratio.sequence, ratio.sequence_sum) or base(algorithm.surrogate) is surrogate.gmpo
    detached = base(algorithm.surrogate) in (surrogate.cispo, surrogate.reinforce_ratio, surrogate.reinforce)
    where = base(algorithm.aggregate)
    if whole and not detached and where in (aggregate.token_mean, aggregate.constant, aggregate.sequence_sum):
        yield (
            f"ratio={name_of(algorithm.ratio)}, surrogate={name_of(algorithm.surrogate)}, aggregate={name_of(where)}: "
            "the loss of a whole sequence stands at each of its tokens, so summing weighs a rollout by its length. "
            "Use aggregate sequence_mean, or ratio sequence_token."
        )
    if base(algorithm.surrogate) is surrogate.gmpo and base(algorithm.ratio) is not ratio.token:
        yield (
            f"surrogate=gmpo with ratio={name_of(algorithm.ratio)}: gmpo clips each token and takes the mean itself. "
            "Use ratio token."
        )


def _clipping(algorithm: "Algorithm") -> Iterator[str]:
    kind = base(algorithm.surrogate)
    if kind is surrogate.clip:
        low, high = (_setting(algorithm.surrogate, name) for name in ("eps_low", "eps_high"))
        dual = _setting(algorithm.surrogate, "dual")
        if low <= 0 or high <= 0:
            yield f"surrogate=clip: eps_low={low} and eps_high={high} must be positive."
        if base(algorithm.ratio) in (ratio.sequence, ratio.sequence_token) and max(low, high) >= _GSPO_BAND:
            yield (
                f"ratio={name_of(algorithm.ratio)} with clip {low}/{high}: the mean log-ratio of a sequence moves by "
                f"thousandths, so a band of {_GSPO_BAND} or more never clips. Use eps_low 3e-4, eps_high 4e-4 (GSPO)."
            )
        if dual is not None and dual <= 1 + high:
            yield (
                f"surrogate=clip: dual={dual} must be above 1 + eps_high = {1 + high}, else it cuts inside the trust "
                "region. 3.0 is usual; null for none."
            )
    if kind is surrogate.cispo and (cap := _setting(algorithm.surrogate, "cap")) < 1:
        yield (
            f"surrogate=cispo: cap={cap} is the upper bound of the ratio itself (1 on the sampling policy), so a cap "
            "under 1 only shrinks every weight. Use 5.0; 1 + ε if you meant ε."
        )


def _kl(algorithm: "Algorithm", beta: float | None) -> Iterator[str]:
    kl = algorithm.kl
    if kl is None:
        if beta:
            yield (
                f"beta={beta} without kl: this algorithm has no KL term to weigh. Set algorithm.kl "
                "(for instance estimator k3, place loss), or beta 0."
            )
        if algorithm.ref_refresh_every:
            yield f"ref_refresh_every={algorithm.ref_refresh_every} without kl: there is no reference. Set it to 0."
        return
    in_force = algorithm.beta(beta)
    if in_force < 0:
        yield f"kl: beta={in_force} is negative, which drives the policy away from the reference. Use 0 or more."
    if kl.place == "reward" and kl.estimator != "k1":
        yield f"kl: place reward with estimator {kl.estimator}: a reward needs the unbiased log-ratio itself. Use k1."
    if kl.place == "loss" and kl.estimator == "k1":
        yield "kl: estimator k1 in the loss has a gradient of zero mean: it holds nothing. Use k3, k2 or place reward."


def _rest(algorithm: "Algorithm", group_size: int | None) -> Iterator[str]:
    alone = group_size is not None and group_size < 2
    if alone and base(algorithm.advantage) in _GROUP_RELATIVE:
        yield (
            f"advantage={name_of(algorithm.advantage)} with group_size={group_size}: a rollout beside itself has "
            "advantage 0. Use 2 or more (8 is usual)."
        )
    if algorithm.needs_critic and algorithm.critic is None:
        yield f"advantage={name_of(algorithm.advantage)} needs a critic: set algorithm.critic."
    if algorithm.critic is not None and not algorithm.needs_critic:
        yield f"critic without use: advantage={name_of(algorithm.advantage)} takes no value. Set critic to null."
    for name in ("dynamic_sampling", "ref_refresh_every", "positive_nll"):
        if (value := getattr(algorithm, name)) < 0:
            yield f"{name}={value} is negative. Use 0 for off."


def _setting(function: Callable[..., Any], name: str) -> Any:
    """Value that a partial (or the function's own default) gives to a keyword."""
    return parameters(function)[name].default
