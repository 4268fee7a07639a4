"""Surrogates, ratios, KL, corrections and rules against constants worked out by hand."""

import math

import pytest
import torch

from components.losses import kl, mismatch, overlong, ratio, surrogate
from components.losses.aggregate import GlobalCounts, constant, sequence_mean, sequence_sum, token_mean
from components.losses.entropy import Entropy
from components.losses.preference import bradley_terry, dpo, sequence_logp
from components.losses.sft import nll
from components.losses.value import value_loss


def at(r: float) -> torch.Tensor:
    """One token's log-ratio, with gradient."""
    return torch.tensor([[math.log(r)]], requires_grad=True)


def slope(loss: torch.Tensor, x: torch.Tensor) -> float:
    return float(torch.autograd.grad(loss.sum(), x)[0])


A, B = torch.tensor([[2.0]]), torch.tensor([[-2.0]])
ONE = torch.tensor([[True]])


@pytest.mark.parametrize(
    ("r", "a", "loss", "gradient"),
    [
        (1.1, A, -2.2, -2.2),  # inside
        (1.5, A, -2.6, 0.0),  # above, already better: stopped at 1.3
        (0.5, A, -1.0, -1.0),  # below with A > 0: may come back
        (1.5, B, 3.0, 3.0),  # above with A < 0: may come back
        (0.5, B, 1.6, 0.0),  # below, already worse: stopped at 0.8
    ],
)
def test_clip_stops_the_gradient_only_where_the_update_went_far_enough(r, a, loss, gradient) -> None:
    x = at(r)
    got = surrogate.clip(x, a, eps_low=0.2, eps_high=0.3)
    assert float(got.detach()) == pytest.approx(loss, rel=1e-6)
    assert slope(got, x) == pytest.approx(gradient, rel=1e-6)


def test_dual_clip_bounds_the_loss_of_a_bad_token_far_above() -> None:
    x = at(10.0)
    got = surrogate.clip(x, B, dual=3.0)
    assert float(got.detach()) == pytest.approx(6.0)
    assert slope(got, x) == 0
    assert float(surrogate.clip(at(10.0), A, dual=3.0).detach()) == pytest.approx(-2.4)  # A > 0 is untouched


def test_an_epsilon_of_ten_bounds_only_the_upper_side() -> None:
    assert slope(surrogate.clip(x := at(1e-3), B, eps_low=10, eps_high=10), x) == pytest.approx(2e-3, rel=1e-5)
    assert slope(surrogate.clip(x := at(11.5), A, eps_low=10, eps_high=10), x) == 0


def test_cispo_caps_the_weight_and_keeps_the_gradient() -> None:
    for r, weight in ((0.1, 0.1), (3.0, 3.0), (50.0, 5.0)):
        logp = torch.tensor([[-0.7]], requires_grad=True)
        got = surrogate.cispo(torch.tensor([[math.log(r)]]), logp, A, cap=5.0)
        assert slope(got, logp) == pytest.approx(-weight * 2.0, rel=1e-6)


def test_sapo_has_slope_one_on_the_sampling_policy_and_fades_on_both_sides() -> None:
    # d/dr of −A·4/τ·sigmoid(τ(r−1)) at r = 1 is −A, whatever τ
    assert slope(surrogate.sapo(x := at(1.0), A), x) == pytest.approx(-2.0)
    assert slope(surrogate.sapo(x := at(1.0), B), x) == pytest.approx(2.0)
    assert -2.0 < slope(surrogate.sapo(x := at(4.0), A), x) / 4 < 0


def test_gmpo_is_the_geometric_mean_of_clamped_ratios() -> None:
    d = torch.tensor([[0.1, 0.9, 5.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    got = surrogate.gmpo(d * mask, torch.full((1, 3), 2.0), mask, bound=0.4)
    assert got.shape == (1, 3) and got[0, 0].item() == pytest.approx(-2 * math.exp((0.1 + 0.4) / 2), rel=1e-6)
    assert torch.autograd.grad(got[0, 0], d)[0][0, 1:].eq(0).all()  # beyond the bound, and masked


def test_ratio_levels_by_hand() -> None:
    new, old = torch.tensor([[-1.0, -2.0, 0.0]]), torch.tensor([[-1.5, -1.0, 0.0]])
    mask = torch.tensor([[True, True, False]])
    assert ratio.token(new, old, mask).tolist() == [[0.5, -1.0, 0.0]]
    assert ratio.sequence(new, old, mask).tolist() == [[-0.25]]
    assert ratio.sequence_token(new, old, mask).tolist() == [[-0.25, -0.25, -0.25]]
    assert ratio.sequence_sum(new, old, mask).tolist() == [[-0.5]]


def test_sequence_ratio_sends_its_gradient_through_the_mean() -> None:
    new = torch.zeros(1, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    first = ratio.sequence(new * mask, torch.zeros(1, 3), mask)[0, 0]
    assert torch.autograd.grad(first, new)[0].tolist() == [[0.5, 0.5, 0.0]]
    first = ratio.sequence_token(new * mask, torch.zeros(1, 3), mask)[0, 0]
    assert torch.autograd.grad(first, new)[0].tolist() == [[1.0, 0.0, 0.0]]


def test_aggregations_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    counts = GlobalCounts.of(mask, max_length=8)
    assert counts == GlobalCounts(rollouts=2, tokens=4, max_length=8)
    assert float(sequence_mean(x, mask, counts)) == (2 + 10) / 2
    assert float(token_mean(x, mask, counts)) == 16 / 4
    assert float(constant(x, mask, counts)) == 16 / (2 * 8)
    assert float(constant(x, mask, counts, length=4)) == 16 / (2 * 4)
    assert float(sequence_sum(x, mask, counts)) == 16 / 2


def test_counts_of_parts_merge_to_the_counts_of_the_whole() -> None:
    mask = torch.rand(9, 5, generator=torch.Generator().manual_seed(0)) < 0.4
    positive = torch.arange(9) % 2 == 0
    parts = [GlobalCounts.of(mask[i : i + 3], positive=positive[i : i + 3]) for i in (0, 3, 6)]
    assert GlobalCounts.merge(parts) == GlobalCounts.of(mask, positive=positive)


def test_kl_estimators_by_hand() -> None:
    lp, ref = torch.tensor([[-1.0]]), torch.tensor([[-1.5]])
    assert float(kl.k1(lp, ref)) == 0.5
    assert float(kl.k2(lp, ref)) == 0.125
    assert float(kl.k3(lp, ref)) == pytest.approx(math.exp(-0.5) - 1 + 0.5, rel=1e-6)


def test_k1_and_k3_average_to_the_kl_and_k3_is_never_negative() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    exact = float((p * (p / q).log()).sum())
    for estimator in (kl.k1, kl.k3):
        assert float((p * estimator(p.log(), q.log())).sum()) == pytest.approx(exact, rel=1e-6)
    assert (kl.k3(p.log(), q.log()) >= 0).all()


def test_k3_of_nearly_equal_policies_does_not_cancel_to_zero() -> None:
    # d²/2 = 5e-9 at d = 1e-4; exp(−d) − 1 + d in float32 is wrong by up to 6e-8
    assert float(kl.k3(torch.tensor(1e-4), torch.tensor(0.0))) == pytest.approx(5e-9, rel=0.01)


def test_corrections_for_another_engine_by_hand() -> None:
    old = torch.tensor([[math.log(3.0), math.log(1.5), math.log(0.3), 0.0]])
    engine, mask = torch.zeros(1, 4), torch.tensor([[True, True, True, False]])
    assert mismatch.tis(old, engine, mask)[0].tolist() == pytest.approx([2.0, 1.5, 0.3, 1.0])
    assert mismatch.mis(old, engine, mask)[0].tolist() == pytest.approx([0.0, 1.5, 0.0, 1.0])
    # geometric mean (3 · 1.5 · 0.3)^(1/3) = 1.105 lies inside, so the whole rollout stays
    assert mismatch.mis(old, engine, mask, level="sequence")[0].tolist() == pytest.approx([3.0, 1.5, 0.3, 1.0])
    assert mismatch.mis(old, engine, mask, level="sequence", bound=1.1).eq(0).all()
    seen = mismatch.gap(old, engine, mask)
    assert float(seen["gap"]) == pytest.approx(math.log(3) + math.log(1.5) - math.log(0.3), rel=1e-6)
    assert float(seen["gap_max"]) == pytest.approx(-math.log(0.3), rel=1e-6)


def test_soft_overlong_falls_from_zero_to_minus_one_inside_the_buffer() -> None:
    got = overlong.soft_overlong(torch.tensor([0, 16, 18, 20, 25]), max_length=20, buffer=4)
    assert got.tolist() == [0, 0, -0.5, -1, -1]
    assert overlong.Overlong(buffer_share=0.2).penalty(torch.tensor([17]), 20).tolist() == [-0.25]
    assert overlong.Overlong().penalty(torch.tensor([20]), 20).tolist() == [0]


def test_truncated_rollouts_leave_the_mask_and_the_denominators() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    kept = overlong.drop_truncated(mask, torch.tensor([True, False]))
    assert GlobalCounts.of(kept) == GlobalCounts(rollouts=1, tokens=3, max_length=3)


def test_an_adaptive_entropy_coefficient_moves_by_bounded_steps() -> None:
    entropy = Entropy(coef=0.0, target=0.5, step=0.01, max_coef=0.015)
    assert entropy.following(0.0, 0.4) == 0.01
    assert entropy.following(0.01, 0.4) == 0.015
    assert entropy.following(0.005, 0.6) == 0.0
    assert entropy.following(0.005, math.nan) == 0.005
    assert Entropy(coef=0.02).following(0.02, 0.0) == 0.02


def test_supervised_loss_is_the_token_mean_of_the_whole_update() -> None:
    logp = torch.tensor([[-1.0, -2.0], [-3.0, float("nan")]])
    mask = torch.tensor([[True, True], [True, False]])
    counts = GlobalCounts.of(mask)
    assert float(nll(logp, mask, counts)) == 2.0
    assert float(nll(logp[:1], mask[:1], counts) + nll(logp[1:], mask[1:], counts)) == 2.0


def test_bradley_terry_by_hand() -> None:
    loss, seen = bradley_terry(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, 3.0]), pairs=3)
    expected = (math.log1p(math.exp(-1)) + math.log(2) + math.log1p(math.exp(1))) / 3
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert seen == {"pairs": 3, "right": 1.5, "margin": 0.0}
    far, _ = bradley_terry(torch.tensor([-500.0]), torch.tensor([500.0]), pairs=1)
    assert float(far) == 1000  # no overflow


def test_dpo_by_hand_and_with_label_smoothing() -> None:
    one = torch.tensor([1.0])
    args = (-3 * one, -4 * one, -3.5 * one, -3 * one)  # h = β·(0.5 − (−1)) = 1.5 β
    loss, seen = dpo(*args, pairs=1, beta=0.2)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-0.3)), rel=1e-6)
    assert seen["right"] == 1
    smooth, _ = dpo(*args, pairs=1, beta=0.2, label_smoothing=0.1)
    expected = 0.9 * math.log1p(math.exp(-0.3)) + 0.1 * math.log1p(math.exp(0.3))
    assert float(smooth) == pytest.approx(expected, rel=1e-6)


def test_sequence_logp_sums_or_averages_over_the_mask() -> None:
    logp = torch.tensor([[-1.0, -3.0, -math.inf], [math.nan, -1.0, -1.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert sequence_logp(logp, mask).tolist() == [-4, 0]
    assert sequence_logp(logp, mask, length_normalised=True).tolist() == [-2, 0]


def test_value_loss_takes_the_worse_of_clipped_and_unclipped() -> None:
    value = torch.tensor([[1.0, 0.3]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    target, old = torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.0]])
    # token 1: clipped to 0.7, (0.7 − 1)² = 0.09 > 0; token 2: clipped to 0.2, 0.64 > 0.49
    got = value_loss(value, old, target, mask, GlobalCounts.of(mask), clip=0.2)
    assert float(got.detach()) == pytest.approx((0.09 + 0.64) / 2 / 2)
    assert torch.autograd.grad(got, value)[0].eq(0).all()
    free = value_loss(value, old, target, mask, GlobalCounts.of(mask), clip=None)
    assert float(free.detach()) == pytest.approx(0.49 / 2 / 2)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: surrogate.clip(at(1), A, eps_low=0), "eps_low"),
        (lambda: surrogate.clip(at(1), A, dual=0.5), "dual must be above 1"),
        (lambda: surrogate.sapo(at(1), A, tau_positive=0), "tau"),
        (lambda: mismatch.tis(at(1), at(1), ONE, cap=0.5), "cap"),
        (lambda: mismatch.mis(at(1), at(1), ONE, level="word"), "token or sequence, got 'word'"),
        (lambda: overlong.soft_overlong(torch.tensor([1]), max_length=4, buffer=5), "got 5"),
        (lambda: overlong.Overlong(buffer_share=2), "buffer_share"),
        (lambda: kl.Penalty(estimator="k4"), "k1, k2, k3, got 'k4'"),
        (lambda: kl.Penalty(place="nowhere"), "got 'nowhere'"),
        (lambda: kl.Penalty(estimator="k1", place="reward", corrected=True), "corrected"),
        (lambda: Entropy(coef=-1), "coef=-1"),
        (lambda: dpo(*[torch.zeros(1)] * 4, pairs=1, beta=0), "beta"),
        (lambda: dpo(*[torch.zeros(1)] * 4, pairs=1, label_smoothing=0.5), "label_smoothing"),
    ],
)
def test_a_value_out_of_range_is_named(call, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_impossible_responses_give_dpo_a_finite_loss_and_gradient() -> None:
    mask = torch.ones(1, 1, dtype=torch.bool)
    for chosen, rejected in ((-1.0, -math.inf), (-math.inf, -1.0), (-math.inf, -math.inf)):
        x, y = (torch.tensor([[value]], requires_grad=True) for value in (chosen, rejected))
        ref = torch.tensor([-1.0])
        loss, _ = dpo(sequence_logp(x, mask), sequence_logp(y, mask), ref, ref, pairs=1)
        loss.backward()
        assert loss.isfinite() and x.grad.isfinite().all() and y.grad.isfinite().all()


def test_what_padding_holds_does_not_reach_the_value_loss() -> None:
    value = torch.tensor([[0.5, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    junk = torch.tensor([[0.0, math.nan]])
    value_loss(value, junk, junk, mask, GlobalCounts.of(mask)).backward()
    assert value.grad.tolist() == [[0.5, 0.0]]
