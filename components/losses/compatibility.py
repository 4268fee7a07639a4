"""Combinations of pieces that run and cannot work, told from an algorithm's configuration alone.

Without torch, so that preflight can ask before anything heavy is imported.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]

_GSPO_BAND = 0.05
_HERE = "components.losses."
_SEQUENCE, _SEQUENCE_TOKEN, _SEQUENCE_SUM, _TOKEN = (
    f"{_HERE}ratio.{name}" for name in ("sequence", "sequence_token", "sequence_sum", "token")
)
_CLIP, _CISPO, _GMPO = (f"{_HERE}surrogate.{name}" for name in ("clip", "cispo", "gmpo"))
_DETACHED = (_CISPO, *(f"{_HERE}surrogate.{name}" for name in ("reinforce_ratio", "reinforce")))
_SUMS = tuple(f"{_HERE}aggregate.{name}" for name in ("token_mean", "constant", "sequence_sum"))
_GROUP_RELATIVE = tuple(f"{_HERE}advantage.{name}" for name in ("group_norm", "group_center", "leave_one_out"))
_TURNS = f"{_HERE}turn_advantage.turn_level"
_GAE = f"{_HERE}advantage.gae"


def algorithm_check(settings: Node, *, beta: float | None = None, group_size: int | None = None) -> list[str]:
    """What is wrong with an algorithm: ``piece: the offending values and the reason. Fix: the remedy``.

    Args:
        settings: the algorithm's node, its pieces as nodes with their defaults filled in; pieces that are not built in
            are left alone.
        beta, group_size: the stage's, where they are known.
    """
    checks = (
        _levels(settings),
        _clipping(settings),
        _kl(settings, beta),
        _rest(settings, group_size),
        _figures(settings),
    )
    return [problem for check in checks for problem in check]


def _levels(node: Node) -> Iterator[str]:
    ratio, surrogate, aggregate = (_target(node, name) for name in ("ratio", "surrogate", "aggregate"))
    whole = ratio in (_SEQUENCE, _SEQUENCE_SUM) or surrogate == _GMPO
    if whole and surrogate not in _DETACHED and aggregate in _SUMS:
        yield (
            f"aggregate: {_short(aggregate)} with ratio {_short(ratio)} and surrogate {_short(surrogate)}: the loss of "
            "a whole sequence stands at each of its tokens, so summing weighs a rollout by its length. "
            "Fix: use aggregate sequence_mean, or ratio sequence_token"
        )
    if surrogate == _GMPO and ratio != _TOKEN:
        yield (
            f"ratio: {_short(ratio)} with surrogate gmpo, which clips each token and takes the mean itself. "
            "Fix: use ratio token"
        )


def _clipping(node: Node) -> Iterator[str]:
    ratio, surrogate = _target(node, "ratio"), node["surrogate"]
    if surrogate["_target_"] == _CLIP:
        low, high, dual = (surrogate.get(name) for name in ("eps_low", "eps_high", "dual"))
        if low <= 0 or high <= 0:
            yield f"surrogate: eps_low={low} and eps_high={high} must be positive. Fix: 0.2 is usual"
        if ratio in (_SEQUENCE, _SEQUENCE_TOKEN) and max(low, high) >= _GSPO_BAND:
            yield (
                f"surrogate: eps_low={low}, eps_high={high} with ratio {_short(ratio)}: the mean log-ratio of a "
                f"sequence moves by thousandths, so a band of {_GSPO_BAND} or more never clips. "
                "Fix: use eps_low 3e-4 and eps_high 4e-4 (GSPO), or ratio token"
            )
        if dual is not None and dual <= 1 + high:
            yield (
                f"surrogate: dual={dual} must be above 1 + eps_high = {1 + high}, else it cuts inside the trust "
                "region. Fix: 3.0 is usual; null for none"
            )
    if surrogate["_target_"] == _CISPO and (cap := surrogate["cap"]) < 1:
        yield (
            f"surrogate: cap={cap} is the upper bound of the ratio itself (1 on the sampling policy), so a cap under 1 "
            "only shrinks every weight. Fix: use 5.0; 1 + ε if you meant ε"
        )


def _kl(node: Node, beta: float | None) -> Iterator[str]:
    kl = node.get("kl")
    if kl is None:
        if refresh := node.get("ref_refresh_every"):
            yield f"ref_refresh_every: {refresh} without kl: there is no reference to refresh. Fix: set it to 0"
        return
    in_force = beta if kl.get("beta") is None else kl["beta"]
    if in_force is not None and in_force < 0:
        yield f"kl: beta={in_force} is negative, which drives the policy away from the reference. Fix: use 0 or more"
    if kl["place"] == "reward" and kl["estimator"] != "k1":
        yield (
            f"kl: estimator {kl['estimator']} with place reward: a reward needs the unbiased log-ratio itself. "
            "Fix: use k1"
        )
    if kl["place"] == "loss" and kl["estimator"] == "k1" and not kl.get("corrected"):
        yield (
            "kl: estimator k1 in the loss has a gradient of zero mean: it holds nothing. "
            "Fix: use k3, k2 or place reward"
        )


def _rest(node: Node, group_size: int | None) -> Iterator[str]:
    advantage, critic = _target(node, "advantage"), node.get("critic")
    yield from group_problems(node, group_size)
    if advantage == _GAE and critic is None:
        yield "advantage: gae needs a critic. Fix: set critic to a components.losses.value.Critic"
    if critic is not None and (steps := critic.get("warmup_steps") or 0) < 0:
        yield f"critic: warmup_steps={steps} is negative. Fix: use 0 for none"
    if critic is not None and advantage.startswith(_HERE) and advantage != _GAE:
        yield f"critic: advantage {_short(advantage)} takes no value, so nothing uses it. Fix: set critic to null"
    for name in ("dynamic_sampling", "ref_refresh_every", "positive_nll"):
        if (value := node.get(name) or 0) < 0:
            yield f"{name}: {value} is negative. Fix: use 0 for off"


_POSITIVE: tuple[Callable[[float], bool], str] = (lambda x: x > 0, "must be positive")
_SHARE: tuple[Callable[[float], bool], str] = (lambda x: 0 <= x <= 1, "must lie in [0, 1]")
_FROM_ONE: tuple[Callable[[float], bool], str] = (lambda x: x >= 1, "must be at least 1")
_FROM_ZERO: tuple[Callable[[float], bool], str] = (lambda x: x >= 0, "must not be negative")
_FIGURES: Mapping[str, Mapping[str, tuple[Callable[[float], bool], str]]] = {
    f"{_HERE}advantage.group_norm": {"eps": _FROM_ZERO},
    _TURNS: {"gamma": _SHARE, "weight": _FROM_ZERO},
    _GAE: {"gamma": _SHARE, "lam": _SHARE, "alpha": _POSITIVE},
    f"{_HERE}surrogate.sapo": {"tau_positive": _POSITIVE, "tau_negative": _POSITIVE},
    _GMPO: {"bound": _POSITIVE},
    f"{_HERE}aggregate.constant": {"length": _FROM_ONE},
    f"{_HERE}mismatch.tis": {"cap": _FROM_ONE},
    f"{_HERE}mismatch.mis": {"bound": _FROM_ONE},
    f"{_HERE}overlong.Overlong": {"buffer_share": (lambda x: 0 < x <= 1, "must lie in (0, 1]")},
    f"{_HERE}entropy.Entropy": {"coef": _FROM_ZERO, "step": _FROM_ZERO},
    f"{_HERE}value.Critic": {"lam": _SHARE, "clip": _POSITIVE, "coef": _POSITIVE},
}


def _figures(node: Node) -> Iterator[str]:
    for piece, settings in node.items():
        if isinstance(settings, Mapping):
            for name, (holds, what) in _FIGURES.get(str(settings.get("_target_")), {}).items():
                value = settings.get(name)
                if isinstance(value, int | float) and not holds(value):
                    yield f"{piece}: {name}={value} {what}. Fix: write such a value, or leave {name} out"


def group_problems(node: Node, group_size: int | None) -> Iterator[str]:
    """Whether an algorithm compares rollouts of one prompt and there is only one."""
    advantage = _target(node, "advantage")
    if group_size is not None and group_size < 2 and advantage in (*_GROUP_RELATIVE, _TURNS):
        yield (
            f"advantage: {_short(advantage)} with group_size={group_size}: it compares at least two rollouts. "
            "Fix: use 2 or more (8 is usual)"
        )


def _target(node: Node, piece: str) -> str:
    return node[piece]["_target_"]


def _short(target: str) -> str:
    return target.rpartition(".")[2]
