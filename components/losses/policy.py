"""An RL algorithm as a value: advantage × ratio × surrogate × aggregate, plus KL, entropy and data rules.

The RL stage holds an `Algorithm` and does not know which one it is:

    algorithm.advantages(reward, group, valid, …)  →  A      once per update
    algorithm.loss(logp, logp_old, A, mask, …)     →  loss   once per micro-batch; the losses add up

Whatever of this a preset sets is in ``conf/algorithm/*.yaml``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from components.losses import mismatch, overlong, ratio, stats, supply
from components.losses.advantage import gae
from components.losses.aggregate import GlobalCounts
from components.losses.compatibility import algorithm_check  # preflight asks for it here too, of the node
from components.losses.entropy import Entropy
from components.losses.kl import Penalty
from components.losses.overlong import Overlong
from components.losses.stats import Stats
from components.losses.terms import further_terms, reward_penalty
from components.losses.value import Critic

State = dict[str, float]

_SUPPLIED = {
    "advantage": {"reward", "group", "valid", "mask", "penalty", "value", "turn_reward", "all_reduce"},
    "surrogate": {"log_ratio", "logp", "advantage", "mask"},
}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One policy-gradient algorithm.

    Attributes:
        advantage: a function of `components.losses.advantage`; gets the arguments that its signature names.
        ratio: (logp, logp_old, mask) → log-ratio [N, T], or [N, 1] of whole rollouts.
        surrogate: a function of `components.losses.surrogate`; gets the arguments that its signature names.
        aggregate: (x, mask, counts) → scalar.
        kl: penalty towards the reference policy; None for none.
        entropy: bonus, fixed or adaptive.
        mismatch: (logp_old, logp_engine, mask) → weights, applied when lp_old is the trainer's own.
        overlong: rules for truncated responses.
        dynamic_sampling: rounds of further prompts at most to replace groups without signal; 0: off.
        positive_nll: μ of the NLL on rollouts that the verifier called correct (VAPO, arXiv:2504.05118 §4.3).
        critic: settings of the critic, for an advantage that takes ``value``.
        ref_refresh_every: steps after which the reference becomes a copy of the policy; 0: never.
        suggests: figures that go with the algorithm and that stages own (group_size, lr, …); used where a stage leaves
            them null.
    """

    advantage: Callable[..., Tensor]
    ratio: Callable[..., Tensor]
    surrogate: Callable[..., Tensor]
    aggregate: Callable[..., Tensor]
    kl: Penalty | None = None
    entropy: Entropy | None = None
    mismatch: Callable[..., Tensor] | None = None
    overlong: Overlong | None = None
    dynamic_sampling: int = 0
    positive_nll: float = 0.0
    critic: Critic | None = None
    ref_refresh_every: int = 0
    suggests: Mapping[str, float] = field(default_factory=dict)

    # -- what the stage has to provide ---------------------------------------------------------------------------------
    @property
    def needs_critic(self) -> bool:
        return "value" in supply.parameters(self.advantage)

    @property
    def needs_turns(self) -> bool:
        """Whether the advantage is taken per turn."""
        return "turn_reward" in supply.parameters(self.advantage)

    @property
    def critic_warmup(self) -> int:
        """Steps of the critic alone before the policy's first."""
        return 0 if self.critic is None else self.critic.warmup_steps

    @property
    def needs_entropy(self) -> bool:
        """Whether `loss` wants the entropy of every token's distribution, with gradient."""
        return self.entropy is not None and (self.entropy.coef > 0 or self.entropy.target is not None)

    def beta(self, stage_beta: float | None = None) -> float:
        """KL coefficient in force: the algorithm's own, else the stage's; 0 without a KL term."""
        if self.kl is None:
            return 0.0
        return (stage_beta or 0.0) if self.kl.beta is None else self.kl.beta

    def suggested(self, name: str, given: float | None, otherwise: float) -> float:
        """A figure that the stage owns: what it was given, else what goes with the algorithm, else ``otherwise``."""
        return self.suggests.get(name, otherwise) if given is None else given

    def needs_reference(self, stage_beta: float | None = None) -> bool:
        return self.beta(stage_beta) != 0

    def refreshes_reference(self, step: int) -> bool:
        """Whether the reference is replaced after ``step`` finished optimiser steps."""
        return self.ref_refresh_every > 0 and step > 0 and step % self.ref_refresh_every == 0

    def check(self, *, beta: float | None = None, group_size: int | None = None) -> list[str]:
        """Combinations that run and cannot work, each with the reason; empty if there are none."""
        node = {f.name: supply.described(getattr(self, f.name)) for f in fields(self)}
        return [*self._unsupplied(), *algorithm_check(node, beta=beta, group_size=group_size)]

    def _unsupplied(self) -> Iterator[str]:
        """Arguments of one's own functions that nobody gives them; preflight cannot see these."""
        for piece, supplied in _SUPPLIED.items():
            function = getattr(self, piece)
            for name in supply.required(function):
                if name not in supplied:
                    yield (
                        f"{piece}: {supply.name_of(function)} asks for {name!r}, which is neither set in its node nor "
                        f"one of {', '.join(sorted(supplied))}. Fix: set it, or rename the argument"
                    )
        if self.needs_critic and self.critic is None and supply.base(self.advantage) is not gae:
            yield f"advantage: {supply.name_of(self.advantage)} takes a value. Fix: set algorithm.critic"

    # -- data rules ----------------------------------------------------------------------------------------------------
    def shape_rewards(
        self, reward: Float[Tensor, " N"], length: Int[Tensor, " N"], max_length: int
    ) -> Float[Tensor, " N"]:
        """Rewards with the soft overlong punishment, where the algorithm has one."""
        return reward if self.overlong is None else reward + self.overlong.penalty(length, max_length)

    def loss_mask(self, mask: Bool[Tensor, "N T"], truncated: Bool[Tensor, " N"]) -> Bool[Tensor, "N T"]:
        """Tokens in the loss. Take it after the advantages and make the `GlobalCounts` of it."""
        drop = self.overlong is not None and self.overlong.drop
        return overlong.drop_truncated(mask, truncated) if drop else mask

    # -- the update ----------------------------------------------------------------------------------------------------
    def advantages(
        self,
        reward: Float[Tensor, " N"],
        group: Int[Tensor, " N"],
        valid: Bool[Tensor, " N"],
        *,
        mask: Bool[Tensor, "N T"] | None = None,
        logp: Float[Tensor, "N T"] | None = None,
        ref_logp: Float[Tensor, "N T"] | None = None,
        value: Float[Tensor, "N T"] | None = None,
        turn_reward: Float[Tensor, "N K"] | None = None,
        beta: float | None = None,
        all_reduce: Callable[[Tensor], None] | None = None,
    ) -> Float[Tensor, " N"] | Float[Tensor, "N T"]:
        """Advantages of all rollouts that this rank holds, constant with respect to θ.

        Args:
            group: an id per rollout; groups lie whole on one rank.
            valid: False for failed or abstained rollouts.
            mask: tokens of the policy, before any overlong filter.
            logp, ref_logp: log-probabilities of policy and reference, for a KL penalty in the reward.
            value: the critic's values at sampling time.
            turn_reward: the environment's, of each turn.
            beta: the stage's KL coefficient.
            all_reduce: sums over ranks, in place, for statistics of the whole update.

        Raises:
            ValueError: shapes differ, or the algorithm needs something that was not given.
        """
        if not reward.shape == group.shape == valid.shape or reward.ndim != 1:
            raise ValueError(
                f"advantages: reward, group and valid must be [N], got {tuple(reward.shape)}, "
                f"{tuple(group.shape)}, {tuple(valid.shape)}"
            )
        if group.is_floating_point():
            raise ValueError(f"advantages: group must hold integer ids, got {group.dtype}")
        reward = reward.detach() if reward.is_floating_point() else reward.float()
        available = {"group": group, "valid": valid.bool(), "all_reduce": all_reduce}
        if mask is not None:
            available["mask"] = mask.bool()
        if value is not None:
            available["value"] = value.detach()
        if turn_reward is not None:
            available["turn_reward"] = turn_reward
        penalty = reward_penalty(self, mask, logp, ref_logp, self.beta(beta))
        if penalty is not None and "penalty" not in supply.parameters(self.advantage):
            # The function rewards whole responses: it sees the response's reward less its summed penalty.
            reward = reward - penalty.sum(-1).to(reward.dtype)
            penalty = None
        result = supply.call(self.advantage, {**available, "reward": reward, "penalty": penalty})
        keep = valid.bool() if result.ndim == 1 else valid.bool()[:, None]
        return torch.where(keep, result, 0.0).detach()

    def loss(
        self,
        logp: Float[Tensor, "N T"],
        logp_old: Float[Tensor, "N T"],
        advantage: Float[Tensor, " N"] | Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
        *,
        counts: GlobalCounts,
        beta: float | None = None,
        ref_logp: Float[Tensor, "N T"] | None = None,
        entropy: Float[Tensor, "N T"] | None = None,
        logp_engine: Float[Tensor, "N T"] | None = None,
        positive: Bool[Tensor, " N"] | None = None,
        state: Mapping[str, float] | None = None,
    ) -> tuple[Float[Tensor, ""], Stats]:
        """Loss of one micro-batch, already divided by the counts of the whole update; the micro-batches' losses add up.

        Args:
            logp: log π_θ of the sampled tokens, with gradient.
            logp_old: log-probabilities under the policy that sampled.
            counts: of the whole update, over all ranks, made of the same mask.
            beta: the stage's KL coefficient.
            ref_logp: reference policy, if `needs_reference`.
            entropy: of each token's distribution, with gradient if `needs_entropy`; else only for the stats.
            logp_engine: the engine's log-probabilities where logp_old is the trainer's own.
            positive: rollouts that the verifier called correct, if positive_nll > 0.
            state: `initial_state` or what `observe` returned.

        Returns:
            The loss, and stats that `stats.merge` adds up over micro-batches and ranks.

        Raises:
            ValueError: the algorithm needs something that was not given, or shapes differ.
        """
        if not logp.shape == logp_old.shape == mask.shape or logp.ndim != 2:
            raise ValueError(
                f"loss: logp, logp_old and mask must be [N, T], got {tuple(logp.shape)}, "
                f"{tuple(logp_old.shape)}, {tuple(mask.shape)}"
            )
        if advantage.shape not in (logp.shape, logp.shape[:1]):
            raise ValueError(
                f"loss: advantage must be [N] or [N, T] of {tuple(logp.shape)}, got {tuple(advantage.shape)}"
            )
        mask = mask.bool()
        # Masked once, here: padding may hold anything, NaN included.
        inside = mask.to(torch.promote_types(logp.dtype, torch.float32))
        logp, logp_old = (ratio.clean(x, mask, inside) for x in (logp, logp_old.detach()))
        ref_logp = None if ref_logp is None else ratio.clean(ref_logp.detach(), mask, inside)
        entropy = None if entropy is None else torch.where(mask, entropy, 0.0)
        advantage = advantage.detach().to(logp.dtype)
        advantage = advantage[:, None] if advantage.ndim == 1 else torch.where(mask, advantage, 0.0)
        log_ratio = self.ratio(logp, logp_old, mask)
        drift = log_ratio.detach() if supply.base(self.ratio) is ratio.token else logp.detach() - logp_old
        at = {"advantage": advantage, "mask": mask}
        tokens = supply.call(self.surrogate, {"log_ratio": log_ratio, "logp": logp, **at}) * inside
        seen: dict[str, Tensor] = {
            "tokens": inside.sum(),
            "clipped": stats.clipped(self.surrogate, log_ratio, logp, **at),
            **stats.ratio_stats(log_ratio, drift),
            "entropy": -logp.detach().sum() if entropy is None else entropy.detach().sum(),
        }
        if logp_engine is not None:
            seen |= mismatch.gap(logp_old, logp_engine, mask)
            if self.mismatch is not None:
                tokens = tokens * self.mismatch(logp_old, logp_engine, mask).detach()
        loss = self.aggregate(tokens, mask, counts)
        seen["policy_loss"] = loss
        given = {"log_ratio": log_ratio, "ref_logp": ref_logp, "entropy": entropy, "positive": positive, "state": state}
        for term, extra in further_terms(self, logp, mask, counts, seen, beta=self.beta(beta), **given).items():
            seen[term], loss = extra, loss + extra
        seen["loss"] = loss
        return loss, stats.to_floats(seen)

    # -- state over steps ----------------------------------------------------------------------------------------------
    def initial_state(self) -> State:
        """What changes from step to step, JSON-able; goes into the checkpoint."""
        return {} if self.entropy is None else {"entropy_coef": self.entropy.coef}

    def observe(self, state: Mapping[str, float], merged: Mapping[str, float]) -> State:
        """The state after an update whose merged stats are given."""
        if self.entropy is None or not merged.get("tokens"):
            return dict(state)
        coef = self.entropy.following(state["entropy_coef"], merged["entropy"] / merged["tokens"])
        return {**state, "entropy_coef": coef}
