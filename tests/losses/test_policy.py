"""The Algorithm: what it refuses, what it asks for, what it logs, and that nothing finite or infinite makes it NaN."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from components.losses import advantage, aggregate, mismatch, ratio, surrogate
from components.losses.aggregate import GlobalCounts
from components.losses.entropy import Entropy
from components.losses.groups import group_stats, outcomes
from components.losses.kl import Penalty
from components.losses.overlong import Overlong
from components.losses.policy import Algorithm
from components.losses.stats import clipped, merge, summarise, without_gradient
from components.losses.value import Critic
from components.types import Group, Message, Rollout, Score, Task

CONF = Path(__file__).parents[2] / "conf" / "algorithm"
PRESETS = sorted(path.stem for path in CONF.glob("*.yaml"))
ALGORITHMS = {name: instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _convert_="all") for name in PRESETS}


def make(**pieces) -> Algorithm:
    usual = {
        "advantage": advantage.group_norm,
        "ratio": ratio.token,
        "surrogate": surrogate.clip,
        "aggregate": aggregate.token_mean,
    }
    return Algorithm(**{**usual, **pieces})


# -- NaN safety --------------------------------------------------------------------------------------------------------
LOGP = st.one_of(st.floats(-50, 0, width=32), st.sampled_from([-math.inf, -1e30, -88.0, 0.0]))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(PRESETS), width=st.integers(0, 4), rewards=st.sampled_from([1, 2, 7]))
def test_no_input_makes_loss_gradient_or_advantage_nan(data, name: str, width: int, rewards: int) -> None:
    rows = 4
    draw = lambda: torch.tensor(  # noqa: E731
        [[data.draw(LOGP) for _ in range(width)] for _ in range(rows)], dtype=torch.float32
    ).reshape(rows, width)
    logp, old, ref, engine = draw().requires_grad_(), draw(), draw(), draw()
    mask = torch.tensor([[data.draw(st.booleans()) for _ in range(width)] for _ in range(rows)]).reshape(rows, width)
    mask = mask.bool()
    valid = torch.tensor([data.draw(st.booleans()) for _ in range(rows)])
    reward = torch.tensor([float(i % rewards) * 1e4 for i in range(rows)])
    value = torch.zeros(rows, width)
    algorithm = ALGORITHMS[name]
    given = {"mask": mask, "logp": logp, "ref_logp": ref, "value": value, "turn_reward": reward[:, None] / 7}
    a = algorithm.advantages(reward, torch.tensor([0, 0, 1, 1]), valid, **given, beta=0.05)
    assert a.isfinite().all()
    assert a[~valid].eq(0).all()
    loss, stats = algorithm.loss(
        logp,
        old,
        a,
        mask,
        counts=GlobalCounts.of(mask, positive=valid),
        beta=0.05,
        ref_logp=ref,
        positive=valid,
        logp_engine=engine,
    )
    loss.backward()
    assert loss.isfinite()
    assert logp.grad.isfinite().all()
    assert logp.grad[~mask].eq(0).all()
    assert all(math.isfinite(value) for value in stats.values())


@pytest.mark.parametrize("name", PRESETS)
def test_an_update_without_tokens_has_loss_zero_and_gradient_zero(name: str) -> None:
    logp = torch.full((3, 4), -1.0, requires_grad=True)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    positive = mask[:, 0]
    loss, stats = ALGORITHMS[name].loss(
        logp,
        logp.detach(),
        torch.ones(3),
        mask,
        counts=GlobalCounts.of(mask),
        ref_logp=logp.detach(),
        positive=positive,
    )
    loss.backward()
    assert float(loss.detach()) == 0
    assert logp.grad.eq(0).all()
    assert stats["tokens"] == 0


@pytest.mark.parametrize("name", PRESETS)
def test_a_rollout_without_tokens_changes_nothing(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    logp = -torch.rand(4, 3, generator=generator)
    old, mask = logp - 0.1, torch.ones(4, 3, dtype=torch.bool)
    mask[2] = False
    a, positive = torch.tensor([1.0, -1, 7, 0.5]), torch.ones(4, dtype=torch.bool)
    rows = [0, 1, 3]

    def run(rows) -> float:
        counts = GlobalCounts.of(mask[rows], max_length=3, positive=positive[rows])
        return float(
            ALGORITHMS[name].loss(
                logp[rows], old[rows], a[rows], mask[rows], counts=counts, ref_logp=old[rows], positive=positive[rows]
            )[0]
        )

    assert run(rows) == pytest.approx(run([0, 1, 2, 3]), rel=1e-6)


def test_advantages_of_another_shape_are_refused() -> None:
    mask = torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"advantage must be \[N\] or \[N, T\]"):
        make().loss(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(1), mask, counts=GlobalCounts.of(mask))


def test_a_nan_of_the_model_is_not_hidden() -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    logp = torch.tensor([[math.nan, -1.0]])
    loss, _ = make().loss(logp, torch.zeros(1, 2), torch.ones(1), mask, counts=GlobalCounts.of(mask))
    assert loss.isnan()  # the learner's guard has to see it


# -- combinations that cannot work -------------------------------------------------------------------------------------
GSPO = partial(surrogate.clip, eps_low=3e-4, eps_high=4e-4)
K3 = Penalty(estimator="k3")


def need_width(log_ratio, advantage, width):
    return log_ratio * advantage * width


def need_value(reward, value):
    return reward[:, None] - value


@pytest.mark.parametrize(
    ("pieces", "given", "says"),
    [
        ({"ratio": ratio.sequence, "aggregate": aggregate.sequence_mean}, {}, "never clips"),
        ({"ratio": ratio.sequence_token, "surrogate": partial(surrogate.clip, eps_low=1e-3)}, {}, "never clips"),
        ({"ratio": ratio.sequence, "surrogate": GSPO}, {}, "weighs a rollout by its length"),
        (
            {"ratio": ratio.sequence_sum, "aggregate": aggregate.sequence_sum},
            {},
            "weighs a rollout by its length",
        ),
        ({"surrogate": surrogate.gmpo}, {}, "weighs a rollout by its length"),
        (
            {"ratio": ratio.sequence, "surrogate": surrogate.gmpo, "aggregate": aggregate.sequence_mean},
            {},
            "use ratio token",
        ),
        ({"surrogate": partial(surrogate.cispo, cap=0.2)}, {}, "cap=0.2 is the upper bound of the ratio itself"),
        ({"surrogate": partial(surrogate.clip, dual=1.1)}, {}, "dual=1.1"),
        ({"surrogate": partial(surrogate.clip, eps_low=0)}, {}, "must be positive"),
        ({"kl": K3}, {"beta": -1.0}, "negative"),
        ({"kl": Penalty(estimator="k1", place="loss")}, {}, "gradient of zero mean"),
        ({"kl": Penalty(estimator="k3", place="reward")}, {}, "use k1"),
        ({"ref_refresh_every": 400}, {}, "without kl"),
        ({}, {"group_size": 1}, "group_size=1"),
        ({"advantage": advantage.gae}, {}, "needs a critic"),
        ({"critic": Critic()}, {}, "takes no value, so nothing uses it"),
        ({"advantage": need_value}, {}, "need_value takes a value"),
        ({"dynamic_sampling": -1}, {}, "dynamic_sampling: -1"),
        ({"surrogate": need_width}, {}, "asks for 'width'"),
        ({"advantage": partial(advantage.group_norm, eps=-1.0)}, {}, "eps=-1.0 must not be negative"),
        ({"advantage": partial(advantage.gae, alpha=0.0), "critic": Critic()}, {}, "alpha=0.0 must be positive"),
        ({"advantage": partial(advantage.gae, gamma=1.5), "critic": Critic()}, {}, "gamma=1.5 must lie in [0, 1]"),
        ({"surrogate": partial(surrogate.sapo, tau_positive=-1)}, {}, "tau_positive=-1 must be positive"),
        ({"aggregate": partial(aggregate.constant, length=0)}, {}, "length=0 must be at least 1"),
        ({"mismatch": partial(mismatch.tis, cap=0.5)}, {}, "cap=0.5 must be at least 1"),
    ],
)
def test_nonsense_is_refused_with_its_reason(pieces: dict, given: dict, says: str) -> None:
    messages = make(**pieces).check(**given)
    assert any(says in message for message in messages), messages


@pytest.mark.parametrize(
    ("pieces", "given"),
    [
        ({}, {"beta": 0.0, "group_size": 8}),
        ({"kl": K3}, {"beta": 0.02}),
        ({}, {"beta": 0.02}),  # a stage's coefficient is for algorithms with a KL term
        ({"advantage": need_value, "critic": Critic()}, {}),
        ({"kl": Penalty(estimator="k1", corrected=True)}, {}),
        ({"ratio": ratio.sequence_token, "surrogate": GSPO}, {}),
        ({"ratio": ratio.sequence, "surrogate": surrogate.cispo}, {}),  # the ratio is a detached weight
        ({"surrogate": partial(need_width, width=3)}, {}),
        ({"surrogate": partial(surrogate.clip, dual=3.0)}, {}),
    ],
)
def test_what_works_is_not_refused(pieces: dict, given: dict) -> None:
    assert make(**pieces).check(**given) == []


# -- what it asks for --------------------------------------------------------------------------------------------------
def test_beta_is_the_algorithms_own_else_the_stages() -> None:
    assert make().beta(0.3) == 0
    assert make(kl=K3).beta(0.3) == 0.3
    assert make(kl=Penalty(beta=0.1)).beta(0.3) == 0.1
    assert not make(kl=K3).needs_reference(None)
    assert make(kl=K3).needs_reference(0.3)


def test_the_reference_is_refreshed_after_every_k_finished_steps() -> None:
    algorithm = make(kl=K3, ref_refresh_every=3)
    assert [step for step in range(8) if algorithm.refreshes_reference(step)] == [3, 6]
    assert not any(make().refreshes_reference(step) for step in range(8))


MASK = torch.ones(2, 3, dtype=torch.bool)
ZERO = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("pieces", "missing"),
    [
        ({"kl": Penalty(beta=0.1)}, "ref_logp"),
        ({"entropy": Entropy(coef=0.1)}, "entropy"),
        ({"positive_nll": 0.1}, "positive"),
    ],
)
def test_a_missing_tensor_is_named(pieces: dict, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        make(**pieces).loss(ZERO, ZERO, torch.zeros(2), MASK, counts=GlobalCounts.of(MASK))


def test_advantages_name_what_they_miss() -> None:
    ids, valid = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="gae needs mask, value"):
        make(advantage=advantage.gae, critic=Critic()).advantages(torch.zeros(2), ids, valid)
    with pytest.raises(ValueError, match="paid in the reward"):
        make(kl=Penalty(estimator="k1", place="reward", beta=0.1)).advantages(torch.zeros(2), ids, valid)
    with pytest.raises(ValueError, match="integer ids"):
        make().advantages(torch.zeros(2), ids.float(), valid)
    with pytest.raises(ValueError, match=r"\[N\]"):
        make().advantages(torch.zeros(3), ids, valid)


def test_a_users_function_gets_the_arguments_that_it_names() -> None:
    def mine(log_ratio, mask, *, scale):
        return scale * log_ratio * mask

    logp = torch.tensor([[0.2, 0.4, 0.0]])
    mask = torch.tensor([[True, True, False]])
    algorithm = make(surrogate=partial(mine, scale=5.0))
    loss, _ = algorithm.loss(logp, torch.zeros(1, 3), torch.ones(1), mask, counts=GlobalCounts.of(mask))
    assert float(loss) == pytest.approx(5 * 0.6 / 2)


def test_what_padding_holds_reaches_no_users_aggregate() -> None:
    mask = torch.tensor([[True, False]])
    junk = torch.tensor([[-1.0, math.nan]])
    algorithm = make(
        aggregate=lambda x, mask, counts: (x * mask).sum(), kl=Penalty(beta=0.1), entropy=Entropy(coef=0.1)
    )
    logp = junk.clone().requires_grad_()
    loss, stats = algorithm.loss(
        logp, junk, torch.ones(1), mask, counts=GlobalCounts.of(mask), ref_logp=junk, entropy=-junk, logp_engine=junk
    )
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-1.0 - 0.1)
    assert logp.grad[0, 1] == 0
    assert all(math.isfinite(value) for value in stats.values())


# -- terms, data rules, state ------------------------------------------------------------------------------------------
def test_terms_add_up_with_their_coefficients() -> None:
    logp, ref = torch.full((2, 3), -1.0), torch.full((2, 3), -1.5)
    entropy, positive = torch.full((2, 3), 0.7), torch.tensor([True, False])
    algorithm = make(kl=Penalty(beta=0.1), entropy=Entropy(coef=0.01), positive_nll=0.2)
    loss, stats = algorithm.loss(
        logp,
        logp,
        torch.tensor([3.0, 1.0]),
        MASK,
        counts=GlobalCounts.of(MASK, positive=positive),
        ref_logp=ref,
        entropy=entropy,
        positive=positive,
    )
    k3 = math.exp(-0.5) - 1 + 0.5
    assert stats["policy_loss"] == pytest.approx(-2.0)
    assert stats["kl_loss"] == pytest.approx(0.1 * k3)
    assert stats["entropy_loss"] == pytest.approx(-0.007)
    assert stats["positive_nll_loss"] == pytest.approx(0.2)  # mean NLL of the correct rollout's tokens is 1
    assert float(loss) == pytest.approx(-2.0 + 0.1 * k3 - 0.007 + 0.2) == stats["loss"]


def test_engine_weights_multiply_the_policy_loss_only_when_asked() -> None:
    engine = ZERO - math.log(1.5)
    for correction, factor in ((None, 1.0), (mismatch.tis, 1.5), (partial(mismatch.tis, cap=1.2), 1.2)):
        algorithm = make(mismatch=correction)
        loss, stats = algorithm.loss(ZERO, ZERO, torch.ones(2), MASK, counts=GlobalCounts.of(MASK), logp_engine=engine)
        assert float(loss) == pytest.approx(-factor)
        assert summarise(stats)["gap"] == pytest.approx(math.log(1.5))


def test_the_entropy_coefficient_follows_the_measured_entropy_through_the_state() -> None:
    algorithm = make(entropy=Entropy(coef=0.0, target=1.0, step=0.01))
    state = algorithm.initial_state()
    entropy = torch.full((2, 3), 0.4)
    _, stats = algorithm.loss(
        ZERO, ZERO, torch.ones(2), MASK, counts=GlobalCounts.of(MASK), entropy=entropy, state=state
    )
    state = algorithm.observe(state, merge([stats, stats]))
    assert state == {"entropy_coef": 0.01}
    _, stats = algorithm.loss(
        ZERO, ZERO, torch.ones(2), MASK, counts=GlobalCounts.of(MASK), entropy=entropy, state=state
    )
    assert stats["entropy_loss"] == pytest.approx(-0.004)
    assert make().observe({}, stats) == {}


def test_truncated_rollouts_count_in_the_group_and_leave_the_loss() -> None:
    algorithm = make(overlong=Overlong(drop=True), advantage=advantage.group_center)
    truncated = torch.tensor([True, False])
    a = algorithm.advantages(torch.tensor([0.0, 1.0]), torch.zeros(2, dtype=torch.long), torch.ones(2).bool())
    kept = algorithm.loss_mask(MASK, truncated)
    loss, _ = algorithm.loss(ZERO, ZERO, a, kept, counts=GlobalCounts.of(kept))
    assert a.tolist() == [-0.5, 0.5]
    assert float(loss) == pytest.approx(-0.5)  # mean over the three tokens that stay, not over six
    assert make().loss_mask(MASK, truncated) is MASK


def test_the_soft_overlong_punishment_is_added_to_the_reward() -> None:
    reward, length = torch.tensor([1.0, 1.0]), torch.tensor([8, 10])
    assert make(overlong=Overlong(buffer_share=0.4)).shape_rewards(reward, length, 10).tolist() == [0.5, 0.0]
    assert make().shape_rewards(reward, length, 10) is reward


# -- what it logs ------------------------------------------------------------------------------------------------------
def test_the_clip_fraction_counts_tokens_that_lost_their_gradient() -> None:
    d = torch.tensor([[0.0, 0.5, -0.5, 0.0], [0.5, -0.5, 0.5, 9.0]])
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    a = torch.tensor([1.0, -1.0])  # up: 0.5 is clipped; down: −0.5 is clipped
    _, stats = make().loss(d, torch.zeros(2, 4), a, mask, counts=GlobalCounts.of(mask))
    assert stats["clipped"] == 2
    assert summarise(stats)["clip_fraction"] == pytest.approx(2 / 7)
    assert summarise(stats)["ratio_max"] == pytest.approx(math.exp(0.5))
    assert summarise(stats)["ratio_min"] == pytest.approx(math.exp(-0.5))
    _, stats = make().loss(d, torch.zeros(2, 4), torch.zeros(2), mask, counts=GlobalCounts.of(mask))
    assert stats["clipped"] == 0  # no advantage, nothing to lose


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["clip", "dual", "wide", "cispo", "sapo", "gmpo", "reinforce", "reinforce_ratio"]),
)
def test_what_a_surrogate_says_it_clipped_is_what_has_no_gradient(seed: int, name: str) -> None:
    choices = {
        "clip": partial(surrogate.clip, eps_low=0.2, eps_high=0.3),
        "dual": partial(surrogate.clip, dual=1.4),
        "wide": partial(surrogate.clip, eps_low=10.0, eps_high=10.0),
    }
    function = choices.get(name) or getattr(surrogate, name)
    rng = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, 5, generator=rng) < 0.7
    # float64, and up to e³: further out a sigmoid is flat by rounding, which is not clipping.
    log_ratio = torch.where(mask, torch.randn(3, 5, generator=rng).double().clamp(-3, 3), 0.0)
    logp = torch.where(mask, -torch.rand(3, 5, generator=rng).double(), 0.0)
    a = torch.where(mask, torch.randint(-1, 2, (3, 1), generator=rng).double(), 0.0)
    said = clipped(function, log_ratio, logp, a, mask)
    assert float(said) == float(without_gradient(function, log_ratio, logp, a, mask))


def test_a_users_surrogate_is_asked_for_its_gradient() -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    function = lambda log_ratio, advantage: -advantage * log_ratio.clamp(-0.1, 0.1)  # noqa: E731
    _, seen = make(surrogate=function).loss(
        torch.tensor([[0.0, 0.5, -0.5]]), torch.zeros(1, 3), torch.ones(1), mask, counts=GlobalCounts.of(mask)
    )
    assert seen["clipped"] == 2


def test_a_corrected_kl_has_the_gradient_of_the_reverse_kl() -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    old = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    mask = torch.ones(3, 1, dtype=torch.bool)
    exact = (logits.softmax(-1) * (logits.log_softmax(-1) - ref)).sum()
    expected = torch.autograd.grad(exact, logits)[0]

    def gradient(corrected: bool) -> torch.Tensor:
        """Of the KL term over every token, each as often as the sampling policy draws it."""
        algorithm = make(kl=Penalty(beta=1.0, corrected=corrected))
        total = torch.zeros((), dtype=torch.float64)
        for token in range(3):
            logp = logits.log_softmax(-1)[token].reshape(1, 1)
            args = logp, old[token].reshape(1, 1), torch.zeros(1, dtype=torch.float64), mask[:1]
            loss, _ = algorithm.loss(*args, counts=GlobalCounts(1, 1, 1), ref_logp=ref[token].reshape(1, 1))
            total = total + old[token].exp() * loss
        return torch.autograd.grad(total, logits)[0]

    torch.testing.assert_close(gradient(True), expected, rtol=1e-9, atol=1e-12)
    assert (gradient(False) - expected).abs().max() > 0.05


def test_kl_to_the_sampling_policy_is_k3_with_the_ratio() -> None:
    mask = torch.tensor([[True, True, False]])
    _, stats = make().loss(
        torch.tensor([[0.5, 0.0, 9.0]]), torch.zeros(1, 3), torch.ones(1), mask, counts=GlobalCounts.of(mask)
    )
    assert summarise(stats)["kl_old"] == pytest.approx(0.5**2 / 2 / 2, rel=1e-6)


# -- groups ------------------------------------------------------------------------------------------------------------
def rollout(task: str, finish: str = "stop") -> Rollout:
    return Rollout(task, (1,), (2, 3, 4), (True, False, True), (-0.1, 0.0, -0.2), "x", finish)


def group(task: str, scores: list[Score], finish: str = "stop") -> Group:
    t = Task(task, (Message("user", "1+1"),), "2", "exact")
    return Group(t, tuple(rollout(task, finish) for _ in scores), tuple(scores))


def test_outcomes_flatten_groups_in_order() -> None:
    got = outcomes(
        [
            group("a", [Score(1.3, {"accuracy": 1.0}), Score(0.3, {"accuracy": 0.0})]),
            group("b", [Score(0.0, outcome="failed"), Score(0.9, {"accuracy": 0.5})], finish="length"),
        ]
    )
    assert got.reward.tolist() == pytest.approx([1.3, 0.3, 0, 0.9])
    assert got.group.tolist() == [0, 0, 1, 1]
    assert got.valid.tolist() == [True, True, False, True]
    assert got.correct.tolist() == [True, False, False, False]
    assert got.length.tolist() == [2] * 4
    assert got.truncated.tolist() == [False, False, True, True]
    counts = group_stats(got.reward, got.group, got.valid)
    assert counts == {"groups": 2, "groups_flat": 0, "groups_alone": 1, "rollouts_invalid": 1}


def test_a_rollout_in_the_wrong_group_is_named() -> None:
    wrong = group("a", [Score(1.0), Score(0.0)])
    with pytest.raises(ValueError, match="group a holds rollouts of b"):
        outcomes([Group(wrong.task, (wrong.rollouts[0], rollout("b")), wrong.scores)])
    with pytest.raises(ValueError, match="2 rollouts but 1 scores"):
        outcomes([Group(wrong.task, wrong.rollouts, wrong.scores[:1])])
    with pytest.raises(ValueError, match="reward nan is not finite"):
        outcomes([group("a", [Score(math.nan)])])


def test_no_groups_give_empty_outcomes() -> None:
    got = outcomes([])
    assert all(column.shape == (0,) for column in got)
    assert make().advantages(got.reward, got.group, got.valid).shape == (0,)
