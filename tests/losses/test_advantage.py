"""Advantages against constants worked out by hand, and against float64 loops written from the formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.losses import advantage

ALL = torch.ones(4, dtype=torch.bool)
GROUP_RELATIVE = (advantage.group_norm, advantage.group_center, advantage.leave_one_out)


def test_group_norm_divides_by_the_bessel_corrected_std() -> None:
    # rewards 1 0 0 0: mean 1/4, sum of squares 3/4, std sqrt(3/4 / 3) = 1/2
    got = advantage.group_norm(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.long), ALL, eps=0.0)
    assert got.tolist() == [1.5, -0.5, -0.5, -0.5]


def test_group_center_subtracts_the_mean_only() -> None:
    got = advantage.group_center(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.long), ALL)
    assert got.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    got = advantage.leave_one_out(torch.tensor([1.0, 0, 0.5, 0]), torch.zeros(4, dtype=torch.long), ALL)
    assert got.tolist() == pytest.approx([1 - 0.5 / 3, 0 - 1.5 / 3, 0.5 - 1 / 3, 0 - 1.5 / 3], abs=1e-7)


@pytest.mark.parametrize("function", GROUP_RELATIVE)
def test_a_group_keeps_its_statistics_over_the_members_that_exist(function) -> None:
    valid = torch.tensor([True, True, False, True])
    reward = torch.tensor([1.0, 0, math.nan, 0.5])  # whatever the failed one holds is not read
    got = function(reward, torch.zeros(4, dtype=torch.long), valid)
    alone = function(reward[valid], torch.zeros(3, dtype=torch.long), ALL[:3])
    assert got[2] == 0
    assert torch.equal(got[valid], alone)


@pytest.mark.parametrize("function", GROUP_RELATIVE)
def test_the_last_member_of_a_group_has_no_advantage(function) -> None:
    valid = torch.tensor([True, False, True, True])
    got = function(torch.tensor([1.0, 0, 1, 0]), torch.tensor([0, 0, 7, 7]), valid)
    assert got[0] == 0
    assert got[2] > 0 > got[3]


@pytest.mark.parametrize("function", GROUP_RELATIVE)
@pytest.mark.parametrize("size", [2, 6, 64])
def test_a_constant_group_gets_exactly_zero(function, size: int) -> None:
    for value in (0.1, 1 / 3, 0.7, 1.1, -2.3):
        reward = torch.full((size,), value)
        assert function(reward, torch.zeros(size, dtype=torch.long), torch.ones(size, dtype=torch.bool)).eq(0).all()


@pytest.mark.parametrize("function", GROUP_RELATIVE)
def test_rewards_that_differ_by_rounding_alone_are_equal(function) -> None:
    reward = torch.tensor([0.1 + 0.2, 0.3, 0.7 - 0.4, 0.3], dtype=torch.float64)
    assert len(reward.unique()) > 1
    assert function(reward, torch.zeros(4, dtype=torch.long), ALL).eq(0).all()
    reward = torch.tensor([0.3, 0.3, 0.3, 0.3 + 1e-3])
    assert function(reward, torch.zeros(4, dtype=torch.long), ALL).ne(0).all()


@settings(max_examples=60, deadline=None)
@given(
    value=st.floats(-100, 100, width=32),
    size=st.integers(1, 12),
    other=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6),
)
def test_a_constant_group_stays_at_zero_beside_any_other_group(value: float, size: int, other: list[float]) -> None:
    reward = torch.tensor([value] * size + other)
    group = torch.tensor([3] * size + [1] * len(other))
    for function in GROUP_RELATIVE:
        got = function(reward, group, torch.ones(len(reward), dtype=torch.bool))
        assert got[:size].eq(0).all()
        assert got.isfinite().all()


def test_a_permutation_of_rollouts_permutes_the_advantages() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, group = torch.rand(24, generator=generator), torch.arange(24) // 6
    order = torch.randperm(24, generator=generator)
    for function in GROUP_RELATIVE:
        straight = function(reward, group, torch.ones(24, dtype=torch.bool))
        mixed = function(reward[order], group[order], torch.ones(24, dtype=torch.bool))
        # Sums in another order: float64 rounding, far below float32's 6e-8.
        torch.testing.assert_close(mixed, straight[order], rtol=1e-6, atol=1e-7)


def whiten_reference(reward, group, mask, penalty, baseline: bool):
    """REINFORCE++ written out: reward-to-go per token, whitened over all tokens."""
    n, width = mask.shape
    if baseline:
        reward = np.array([r - reward[group == g].mean() for r, g in zip(reward, group, strict=True)])
    to_go = np.zeros((n, width))
    for i in range(n):
        for t in range(width):
            to_go[i, t] = reward[i] - sum(penalty[i, s] for s in range(t, width) if mask[i, s])
    tokens = to_go[mask]
    out = (to_go - tokens.mean()) / tokens.std()
    return np.where(mask, out, 0.0)


@pytest.mark.parametrize("baseline", ["none", "group_mean"])
def test_global_whiten_equals_the_formula(baseline: str) -> None:
    rng = np.random.default_rng(1)
    reward, group = rng.normal(size=6), np.array([0, 0, 0, 1, 1, 1])
    mask = rng.random((6, 5)) < 0.7
    mask[:, 0] = True
    penalty = 0.1 * rng.normal(size=(6, 5))
    got = advantage.global_whiten(
        torch.tensor(reward),
        torch.tensor(group),
        torch.ones(6, dtype=torch.bool),
        torch.tensor(mask),
        torch.tensor(penalty),
        baseline=baseline,
    )
    np.testing.assert_allclose(
        got.numpy(), whiten_reference(reward, group, mask, penalty, baseline == "group_mean"), rtol=1e-12, atol=1e-12
    )


def test_global_whiten_over_two_ranks_equals_one() -> None:
    rng = torch.Generator().manual_seed(2)
    reward, group = torch.rand(8, generator=rng, dtype=torch.float64), torch.arange(8) // 4
    mask = torch.rand(8, 6, generator=rng) < 0.8
    valid = torch.ones(8, dtype=torch.bool)
    whole = advantage.global_whiten(reward, group, valid, mask)
    total, mean = float(mask.sum()), float((mask * reward[:, None]).sum() / mask.sum())
    square = float((mask * (reward[:, None] - mean) ** 2).sum())
    answers = iter([torch.tensor([total, mean * total]), torch.tensor(square)])  # what summing over ranks would give
    part = advantage.global_whiten(
        reward[:4], group[:4], valid[:4], mask[:4], all_reduce=lambda tensor: tensor.copy_(next(answers))
    )
    torch.testing.assert_close(part, whole[:4], rtol=1e-6, atol=1e-6)  # the constants above went through float32


def test_global_whiten_of_equal_rewards_is_exactly_zero() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    got = advantage.global_whiten(torch.full((5,), 0.1), torch.zeros(5, dtype=torch.long), mask[:, 0], mask)
    assert got.eq(0).all()


def gae_reference(reward, mask, value, penalty, gamma, lam):
    """The definition as a double sum over the policy's own tokens."""
    out = np.zeros(mask.shape)
    for i in range(len(mask)):
        own = np.flatnonzero(mask[i])
        r = [-penalty[i, t] + (reward[i] if t == own[-1] else 0.0) for t in own]
        v = [value[i, t] for t in own] + [0.0]
        delta = [r[k] + gamma * v[k + 1] - v[k] for k in range(len(own))]
        for k, t in enumerate(own):
            out[i, t] = sum((gamma * lam) ** j * delta[k + j] for j in range(len(own) - k))
    return out


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (1.0, 0.0)])
def test_gae_equals_the_definition_and_passes_over_tool_output(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(3)
    mask = rng.random((5, 9)) < 0.6
    mask[:, 2] = True
    reward, value, penalty = rng.normal(size=5), rng.normal(size=(5, 9)), 0.1 * rng.normal(size=(5, 9))
    got = advantage.gae(
        torch.tensor(reward),
        torch.ones(5, dtype=torch.bool),
        torch.tensor(mask),
        torch.tensor(np.where(mask, value, np.nan)),  # the critic's values at tool output are not read
        torch.tensor(penalty),
        gamma=gamma,
        lam=lam,
    )
    np.testing.assert_allclose(got.numpy(), gae_reference(reward, mask, value, penalty, gamma, lam), atol=1e-12)


def test_gae_with_lambda_and_gamma_one_is_reward_minus_value() -> None:
    mask = torch.tensor([[True, True, False, True]])
    value = torch.tensor([[0.2, 0.4, 9.0, 0.5]])
    got = advantage.gae(torch.tensor([1.0]), mask[:, 0], mask, value)
    assert got[0].tolist() == pytest.approx([0.8, 0.6, 0.0, 0.5])


def test_adaptive_lambda_is_zero_up_to_twenty_tokens_and_grows_to_one() -> None:
    got = advantage.adaptive_lambda(torch.tensor([0, 1, 20, 40, 2000]), 0.05)
    assert got.tolist() == pytest.approx([0, 0, 0, 0.5, 0.99])


def test_invalid_rollouts_have_no_token_advantage() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    valid = torch.tensor([True, False])
    got = advantage.gae(torch.tensor([1.0, math.nan]), valid, mask, torch.zeros(2, 3))
    assert got.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_gae_takes_the_length_adaptive_lambda_of_each_rollout() -> None:
    rng = np.random.default_rng(4)
    mask = np.arange(60)[None] < np.array([60, 25])[:, None]
    reward, value = rng.normal(size=2), rng.normal(size=(2, 60))
    valid = torch.ones(2, dtype=torch.bool)
    got = advantage.gae(torch.tensor(reward), valid, torch.tensor(mask), torch.tensor(value), alpha=0.05)
    for i, lam in enumerate((1 - 20 / 60, 1 - 20 / 25)):
        row = gae_reference(reward[i : i + 1], mask[i : i + 1], value[i : i + 1], np.zeros((1, 60)), 1.0, lam)
        np.testing.assert_allclose(got[i].numpy(), row[0], atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 20.0, 2000.0])
@pytest.mark.parametrize("size", [3, 6, 64])
def test_rounding_of_large_rewards_is_no_signal(scale: float, size: int) -> None:
    """A sum of terms in another order differs by a unit in the last place of a float32."""
    rewards = torch.full((size,), scale * 1.1)
    rewards[0] = torch.nextafter(rewards[0], torch.tensor(torch.inf))
    ids, valid = torch.zeros(size, dtype=torch.long), torch.ones(size, dtype=torch.bool)
    for function in (advantage.group_norm, advantage.group_center, advantage.leave_one_out):
        assert function(rewards, ids, valid).eq(0).all()


def test_whole_number_rewards_are_rewards() -> None:
    from components.losses import aggregate, ratio, surrogate
    from components.losses.policy import Algorithm

    algorithm = Algorithm(
        advantage=advantage.group_norm, ratio=ratio.token, surrogate=surrogate.clip, aggregate=aggregate.token_mean
    )
    ids, valid = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool)
    assert algorithm.advantages(torch.tensor([1, 0, 1, 0]), ids, valid)[0] > 0.8
