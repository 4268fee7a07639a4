"""What one update looked like, as sums and extremes that add up over micro-batches and ranks."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from components.losses import supply
from components.losses.surrogate import MAX_LOG_RATIO, STOPS

Stats = dict[str, float]

EXTREMES: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"log_ratio_max": max, "log_ratio_min": min, "gap_max": max}
)
_PER_TOKEN = {
    **dict.fromkeys(("clipped", "kl_old", "kl_ref", "entropy"), "tokens"),
    "gap": "gap_tokens",
    "gap_kl": "gap_tokens",
}


def merge(parts: Iterable[Mapping[str, float]]) -> Stats:
    """Stats of the whole update: extremes by max or min, everything else by sum."""
    whole: Stats = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = value if name not in whole else EXTREMES.get(name, _add)(whole[name], value)
    return whole


def summarise(stats: Mapping[str, float]) -> Stats:
    """Figures for the log: per-token means of what is summed over tokens, extremes of r; the rest as it is."""
    summary = {
        name: value / max(stats.get(_PER_TOKEN[name], 0.0), 1.0) if name in _PER_TOKEN else value
        for name, value in stats.items()
        if name != "gap_tokens"
    }
    if "clipped" in summary:
        summary["clip_fraction"] = summary.pop("clipped")
    for end in ("min", "max"):
        if (log_ratio := summary.pop(f"log_ratio_{end}", None)) is not None:
            summary[f"ratio_{end}"] = math.exp(min(max(log_ratio, -MAX_LOG_RATIO), MAX_LOG_RATIO))
    return summary


@torch.no_grad()
def ratio_stats(log_ratio: Tensor, drift: Tensor) -> dict[str, Tensor]:
    """Σ ½ drift², k2 of log π_θ − log π_old per token since sampling, and the extremes of log r; both 0 where masked.

    k2, because it costs one pass where k3 costs four, and for small drifts they agree.
    """
    drift = drift.flatten()
    low, high = log_ratio.aminmax() if log_ratio.numel() else (drift.sum(), drift.sum())
    return {"kl_old": torch.dot(drift, drift) / 2, "log_ratio_max": high, "log_ratio_min": low}


@torch.no_grad()
def clipped(
    surrogate: Callable[..., Tensor], log_ratio: Tensor, logp: Tensor, advantage: Tensor, mask: Tensor
) -> Tensor:
    """Number of tokens whose advantage is not 0 and that the surrogate gives no gradient: what clipping took away.

    Built-in surrogates say which, without their limit of ±20 nats; any other is differentiated once more to find out.
    """
    pieces = {"log_ratio": log_ratio.detach(), "logp": logp.detach(), "advantage": advantage, "mask": mask}
    kind = supply.base(surrogate)
    if kind not in STOPS:
        return without_gradient(surrogate, **pieces)
    if (stops := STOPS[kind]) is None:
        return log_ratio.new_zeros(())
    return (supply.call(stops, {**supply.settings(surrogate), **pieces}) & mask).sum()


def without_gradient(
    surrogate: Callable[..., Tensor], log_ratio: Tensor, logp: Tensor, advantage: Tensor, mask: Tensor
) -> Tensor:
    """`clipped`, from the gradient itself."""
    with torch.enable_grad():
        log_ratio, logp = log_ratio.detach().requires_grad_(), logp.detach().requires_grad_()
        pieces = {"log_ratio": log_ratio, "logp": logp, "advantage": advantage, "mask": mask}
        loss = supply.call(surrogate, pieces).sum()
        if not loss.requires_grad:
            return (mask & (advantage != 0)).sum()
        gradients = torch.autograd.grad(loss, (log_ratio, logp), allow_unused=True)
    still = torch.stack(torch.broadcast_tensors(*(g == 0 for g in gradients if g is not None))).all(0)
    return (mask & (advantage != 0) & still).sum()


@torch.no_grad()
def to_floats(stats: Mapping[str, Tensor]) -> Stats:
    """All values to the host: from a device in one transfer."""
    tensors = list(stats.values())
    on_host = tensors[0].device.type == "cpu"
    values = [float(x) for x in tensors] if on_host else torch.cat([x.reshape(1) for x in tensors]).tolist()
    return dict(zip(stats, values, strict=True))


def _add(a: float, b: float) -> float:
    return a + b
