"""What preflight says of the settings of an RL stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.losses.compatibility import group_problems
from components.rewards.code import forgeable_parts


def rl_check(
    settings: Mapping[str, Any], inputs: Mapping[str, str], processes: int, contents: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """What preflight can say of the settings, and of the data, before anything is loaded."""
    problems = []
    held = contents.get("data", {})
    kinds = {name.removeprefix("train/"): n for name, n in held.items() if name.startswith("train/")}
    for name, wanted in (settings.get("quotas") or {}).items() if kinds else ():
        if name not in kinds:
            known = ", ".join(sorted(kinds))
            problems.append(
                f"quotas.{name}: the data have no such tasks. Fix: name kinds or families there are: {known}"
            )
        elif wanted > kinds[name]:
            got = f"{wanted} prompts a step, and the data have {kinds[name]}"
            problems.append(f"quotas.{name}: {got}. Fix: lower it, or give more rows")
    if not settings.get("quotas") or any(n < 1 for n in settings["quotas"].values()):
        problems.append(
            f"quotas: needs at least one prompt of each kind (got {settings.get('quotas')}). Fix: 32 is usual"
        )
    elif (prompts := sum(settings["quotas"].values())) < processes:
        problems.append(
            f"quotas: {prompts} prompts a step for {processes} processes. Fix: raise them or set launcher.processes=1"
        )
    elif (minibatches := settings.get("minibatches", 1)) > prompts:
        problems.append(f"minibatches: {minibatches} of {prompts} prompts a step, some would be empty. Fix: 2 is usual")
    if isinstance(settings.get("algorithm"), Mapping) and "advantage" in settings["algorithm"]:
        problems += [f"algorithm.{line}" for line in group_problems(settings["algorithm"], settings.get("group_size"))]
    if (level := settings.get("async_level", 0)) not in (0, 1):
        problems.append(f"async_level: must be 0 or 1, got {level}. Fix: 0 samples from the policy as it is")
    if (parts := settings.get("score_parts", 1)) < 1:
        problems.append(f"score_parts: must be at least 1, got {parts}. Fix: 1 scores a step in one go")
    for part in forgeable_parts(settings.get("reward")):
        problems.append(f"{part}.accept_forgeable: programs could forge their rewards. Fix: sandbox.backend=auto")
    return problems


def rl_notes(settings: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """What was set for this stage and has no effect."""
    beta, kl = given.get("beta"), settings["algorithm"].get("kl")
    if not beta or not isinstance(beta, int | float):
        return []
    if kl is None:
        return [f"beta={beta} has no effect: this algorithm has no KL term. Fix: leave it out, or set algorithm.kl"]
    if kl.get("beta") is not None:
        return [f"beta={beta} has no effect: the KL term has its own, {kl['beta']}. Fix: set algorithm.kl.beta"]
    return []


_FIGURES = (
    *("steps", "reward", "reward/*", "length", "truncated", "failed", "abstained", "signal", "groups_used", "raw/*"),
    *("tokens", "kl_old", "kl_ref", "entropy", "entropy_coef", "gap", "gap_kl", "gap_max", "clip_fraction"),
    *("ratio_min", "ratio_max", "loss", "policy_loss", "kl_loss", "entropy_loss", "positive_nll_loss"),
    *("lr", "grad_norm", "updates_skipped", "critic_lr", "critic_grad_norm", "critic_updates_skipped"),
    *("value_loss", "value_clip_fraction", "explained_variance", "value_mean", "return_mean"),
)


def rl_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns; those of a KL term, a critic and so on only where there is one.

    A reward that is no mix of named terms may have any.
    """
    terms = _terms(settings.get("reward"))
    named = [name for term in terms for name in (term, f"{term}.*", f"weighted/{term}")]
    return [*_FIGURES, *(named or ["*"])]


def _terms(reward: Any) -> list[str]:
    """Names of the terms of every mix in a reward."""
    found: list[str] = []
    for key, value in reward.items() if isinstance(reward, Mapping) else ():
        found += [str(name) for name in value] if key == "terms" and isinstance(value, Mapping) else _terms(value)
    return list(dict.fromkeys(found))
