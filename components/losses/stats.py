"""What one update looked like, as sums and extremes that add up over micro-batches and ranks."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from components.losses import supply
from components.losses.kl import k3
from components.losses.surrogate import MAX_LOG_RATIO

Stats = dict[str, float]

EXTREMES: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"ratio_max": max, "ratio_min": min, "gap_max": max}
)
_PER_TOKEN = ("clipped", "kl_old", "kl_ref", "entropy", "gap", "gap_kl")


def merge(parts: Iterable[Mapping[str, float]]) -> Stats:
    """Stats of the whole update: extremes by max or min, everything else by sum."""
    whole: Stats = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = value if name not in whole else EXTREMES.get(name, _add)(whole[name], value)
    return whole


def summarise(stats: Mapping[str, float]) -> Stats:
    """Figures for the log: per-token means of what is summed over tokens; losses, counts and extremes as they are."""
    tokens = max(stats.get("tokens", 0.0), 1.0)
    summary = {name: value / tokens if name in _PER_TOKEN else value for name, value in stats.items()}
    if "clipped" in summary:
        summary["clip_fraction"] = summary.pop("clipped")
    return summary


def ratio_stats(log_ratio: Tensor, logp: Tensor, logp_old: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Σ of k3 to the sampling policy (KL(π_old‖π_θ) on its own samples), and the extremes of r; all 0 where masked."""
    inside = torch.where(mask, log_ratio, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "kl_old": k3(logp_old, logp).sum(),
        "ratio_max": inside.amax().exp() if inside.numel() else inside.sum().exp(),
        "ratio_min": inside.amin().exp() if inside.numel() else inside.sum().exp(),
    }


def without_gradient(
    surrogate: Callable[..., Tensor], log_ratio: Tensor, logp: Tensor, advantage: Tensor, mask: Tensor
) -> Tensor:
    """Number of tokens whose advantage is not 0 and that the surrogate gives no gradient: what clipping took away."""
    with torch.enable_grad():
        log_ratio, logp = log_ratio.detach().requires_grad_(), logp.detach().requires_grad_()
        pieces = {"log_ratio": log_ratio, "logp": logp, "advantage": advantage, "mask": mask}
        loss = supply.call(surrogate, pieces).sum()
        if not loss.requires_grad:
            return (mask & (advantage != 0)).sum()
        gradients = torch.autograd.grad(loss, (log_ratio, logp), allow_unused=True)
    moved = torch.stack([g != 0 for g in gradients if g is not None]).any(0)
    return (mask & (advantage != 0) & ~moved).sum()


def to_floats(stats: Mapping[str, Tensor]) -> Stats:
    """All values to the host in one transfer."""
    values = torch.stack([value.detach().double().reshape(()) for value in stats.values()]).tolist()
    return dict(zip(stats, values, strict=True))


def _add(a: float, b: float) -> float:
    return a + b
