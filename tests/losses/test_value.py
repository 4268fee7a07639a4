"""Targets of the critic, and the figures that say how good it is."""

from functools import partial

import numpy as np
import pytest
import torch

from components.losses import advantage, aggregate, ratio, surrogate
from components.losses.kl import Penalty
from components.losses.policy import Algorithm
from components.losses.stats import merge
from components.losses.value import Critic, summarise_values, value_stats, value_targets

VALID = torch.ones(1, dtype=torch.bool)
MASK = torch.tensor([[True, False, True, True, False]])
VALUE = torch.tensor([[0.5, 9.0, 0.25, 1.0, 9.0]])


def make(critic: Critic | None, kl: Penalty | None = None, **settings: float) -> Algorithm:
    return Algorithm(
        advantage=partial(advantage.gae, **settings),
        ratio=ratio.token,
        surrogate=surrogate.clip,
        aggregate=aggregate.token_mean,
        critic=critic,
        kl=kl,
    )


def test_targets_at_lambda_1_are_the_returns_whatever_the_policys_lambda() -> None:
    got = value_targets(make(Critic(lam=1.0), lam=0.3), torch.tensor([2.0]), VALID, mask=MASK, value=VALUE)
    assert got.tolist() == [[2, 0, 2, 2, 0]]


def test_targets_at_lambda_0_are_the_next_own_tokens_value_past_tool_output() -> None:
    got = value_targets(make(Critic(lam=0.0), lam=1.0), torch.tensor([2.0]), VALID, mask=MASK, value=VALUE)
    assert got.tolist() == [[0.25, 0, 1, 2, 0]]


def test_targets_take_gamma_from_the_advantage_and_the_penalty_from_the_kl() -> None:
    kl = Penalty(estimator="k1", place="reward", beta=0.5)
    logp, ref = torch.zeros(1, 5), torch.tensor([[0.0, 7.0, -1.0, -2.0, 7.0]])  # k1 = 0, ., 1, 2, .
    algorithm = make(Critic(lam=1.0), kl, gamma=0.5)
    got = value_targets(algorithm, torch.tensor([4.0]), VALID, mask=MASK, value=VALUE, logp=logp, ref_logp=ref)
    # last: 4 − 0.5·2 = 3; before: −0.5·1 + 0.5·3 = 1; first: 0.5·1
    assert got.tolist() == [[0.5, 0, 1, 3, 0]]


def test_a_failed_rollout_has_no_targets() -> None:
    got = value_targets(make(Critic()), torch.tensor([2.0]), ~VALID, mask=MASK, value=VALUE)
    assert got.eq(0).all()


def test_targets_need_a_critic() -> None:
    with pytest.raises(ValueError, match="no critic"):
        value_targets(make(None), torch.tensor([2.0]), VALID, mask=MASK, value=VALUE)


def test_figures_are_those_of_the_whole_update_however_it_was_cut() -> None:
    rng = np.random.default_rng(0)
    old, value, target = (rng.normal(size=(6, 5)) for _ in range(3))
    mask = rng.random((6, 5)) < 0.7
    poisoned = [torch.tensor(np.where(mask, x, np.nan)) for x in (value, old, target)]
    cuts = [slice(0, 1), slice(1, 4), slice(4, 6)]
    parts = [value_stats(*(x[cut] for x in poisoned), torch.tensor(mask)[cut], clip=0.2) for cut in cuts]
    got = summarise_values(merge(parts))
    plain, near = (value - target) ** 2, (old + np.clip(value - old, -0.2, 0.2) - target) ** 2
    assert got == pytest.approx(
        {
            "value_loss": np.maximum(plain, near)[mask].mean() / 2,
            "value_clip_fraction": (near > plain)[mask].mean(),
            "explained_variance": 1 - (target - old)[mask].var() / target[mask].var(),
            "value_mean": old[mask].mean(),
            "return_mean": target[mask].mean(),
        },
        rel=1e-12,
    )
    assert 0.1 < got["value_clip_fraction"] < 0.9


def test_a_constant_return_has_no_variance_to_explain() -> None:
    ones = torch.ones(2, 3)
    got = summarise_values(value_stats(ones * 0.1, ones * 0.3, ones * 0.7, ones.bool(), clip=None))
    assert got["explained_variance"] == 0
    assert got["value_clip_fraction"] == 0
    assert summarise_values({}) == {}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clip": 0.0}, "clip must be positive, or null"),
        ({"coef": 0.0}, "coef must be positive"),
        ({"lam": 1.1}, r"lam must lie in \[0, 1\], got 1.1"),
        ({"warmup_steps": -1}, "warmup_steps must be 0 or more, got -1"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Critic(**settings)
