"""Optimisers against independent references in float64, and their state."""

import pytest
import torch

from components.models.optim import AdamW, Muon, orthogonalize
from components.runtime import Peers

ALONE = Peers()

SHAPES = {
    "model.embed_tokens.weight": (11, 6),
    "layers.0.q.weight": (6, 6),
    "layers.0.up.weight": (12, 6),
    "layers.0.down.weight": (6, 12),
    "layers.1.up.weight": (12, 6),
    "layers.0.norm.weight": (6,),
    "lm_head.weight": (11, 6),
}


def parameters(dtype=torch.float32, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for name, shape in SHAPES.items()}


def gradients(step):
    draw = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def reference_newton_schulz(g):
    """One matrix, float64, in the published orientation (wide), five steps of the quintic."""
    x = g.double() / (g.double().norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x.T if tall else x


def reference_run(steps, *, lr, ratio=5.0, momentum=0.95, wd=0.01, betas=(0.9, 0.98), eps=1e-8, muon=True):
    """Muon and AdamW written out from their papers, float64, one parameter at a time."""
    w = {name: p.detach().double() for name, p in parameters().items()}
    buffer = {name: torch.zeros_like(p) for name, p in w.items()}
    second = {name: torch.zeros_like(p) for name, p in w.items()}
    for t, multiplier in enumerate(steps, 1):
        for name, g in gradients(t).items():
            g = g.double()
            if muon and "layers" in name and g.ndim == 2:
                buffer[name] = momentum * buffer[name] + (1 - momentum) * g
                update = reference_newton_schulz(momentum * buffer[name] + (1 - momentum) * g)
                rate = lr * ratio * multiplier
                w[name] = (1 - rate * wd) * w[name] - rate * max(1, g.shape[0] / g.shape[1]) ** 0.5 * update
            else:
                buffer[name] = betas[0] * buffer[name] + (1 - betas[0]) * g
                second[name] = betas[1] * second[name] + (1 - betas[1]) * g**2
                m, v = buffer[name] / (1 - betas[0] ** t), second[name] / (1 - betas[1] ** t)
                rate = lr * multiplier
                w[name] = (1 - rate * wd) * w[name] - rate * m / (v.sqrt() + eps)
    return w


@pytest.mark.parametrize(("kind", "muon"), [(Muon, True), (AdamW, False)])
def test_updates_equal_the_published_formulas(kind, muon):
    named = parameters()
    optimizer = kind(named.items(), lr=0.01)
    multipliers = [0.5, 1.0, 0.3]
    for t, multiplier in enumerate(multipliers, 1):
        optimizer.step(gradients(t), multiplier, ALONE)
    expected = reference_run(multipliers, lr=0.01, muon=muon)
    for name, parameter in named.items():
        # float32 against float64; leaving out decay, the scale, or one iteration moves a weight by more than 1e-4
        torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=0, atol=3e-6, msg=name)


def test_newton_schulz_flattens_the_spectrum_and_keeps_the_directions():
    g = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(g, full_matrices=False)
    inner = u.transpose(-1, -2) @ orthogonalize(g) @ v.transpose(-1, -2)
    values = inner.diagonal(dim1=-2, dim2=-1)
    assert values.min() > 0.6
    assert values.max() < 1.3
    torch.testing.assert_close(inner, torch.diag_embed(values), atol=1e-4, rtol=0)


def test_a_zero_gradient_gives_a_finite_update():
    assert torch.equal(orthogonalize(torch.zeros(2, 4, 6)), torch.zeros(2, 4, 6))


@pytest.mark.parametrize("kind", [Muon, AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded_state_continues_bit_for_bit(kind, dtype):
    straight = parameters(dtype)
    optimizer = kind(straight.items(), lr=0.01)
    for t in (1, 2):
        optimizer.step(gradients(t), 1.0, ALONE)
    saved = {key: value.clone() for key, value in optimizer.state_tensors().items()}
    resumed = {name: torch.nn.Parameter(p.detach().clone()) for name, p in straight.items()}
    second = kind(resumed.items(), lr=0.01)
    second.load_state_tensors(saved)
    for t in (3, 4):
        optimizer.step(gradients(t), 0.7, ALONE)
        second.step(gradients(t), 0.7, ALONE)
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    a, b = optimizer.state_tensors(), second.state_tensors()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_state_is_a_copy():
    named = parameters()
    optimizer = Muon(named.items(), lr=0.01)
    optimizer.step(gradients(1), 1.0, ALONE)
    before = optimizer.state_tensors()
    kept = {key: value.clone() for key, value in before.items()}
    optimizer.step(gradients(2), 1.0, ALONE)
    assert all(torch.equal(before[key], kept[key]) for key in kept)


def test_ranks_share_the_matrices_and_their_sum_is_the_update():
    """Each rank iterates every second matrix; here the ranks run one after another and exchange by hand."""
    alone = parameters()
    Muon(alone.items(), lr=0.01).step(gradients(1), 1.0, ALONE)
    parts: list[torch.Tensor] = []

    class Rank(Peers):
        def all_reduce(self, tensor):
            parts.append(tensor.clone())
            tensor.copy_(sum(parts[-2:]))

    optimizers = [(named := parameters(), Muon(named.items(), lr=0.01)) for _ in (0, 1)]
    for rank, (_, optimizer) in enumerate(optimizers):
        optimizer.step(gradients(1), 1.0, Rank(rank, 2))
    assert not torch.equal(parts[0], parts[1])
    assert not ((parts[0] != 0) & (parts[1] != 0)).any()
    for name, parameter in optimizers[1][0].items():
        torch.testing.assert_close(parameter, alone[name], rtol=0, atol=1e-6)


def test_a_model_without_hidden_matrices_trains_with_adam_alone():
    weight = torch.nn.Parameter(torch.ones(3))
    Muon([("norm.weight", weight)], lr=0.1, weight_decay=0.0).step({"norm.weight": torch.ones(3)}, 1.0, ALONE)
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.9))


def test_small_updates_reach_bfloat16_weights_through_float32_masters():
    weight = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = AdamW([("w", weight)], lr=1e-4, weight_decay=0.0)
    for _ in range(60):  # each update is 1e-4, a bfloat16 unit below 1 is 3.9e-3
        optimizer.step({"w": torch.ones(4, 4)}, 1.0, ALONE)
    assert torch.equal(weight, torch.full((4, 4), 1 - 60e-4).bfloat16())
    assert weight[0, 0] < 1


def test_parameters_without_gradient_are_left_alone():
    frozen = torch.nn.Parameter(torch.ones(3, 3), requires_grad=False)
    trained = torch.nn.Parameter(torch.ones(3, 3))
    optimizer = Muon([("a", frozen), ("b", trained)], lr=0.1)
    optimizer.step({"b": torch.eye(3)}, 1.0, ALONE)
    assert torch.equal(frozen, torch.ones(3, 3))
    assert not torch.equal(trained, torch.ones(3, 3))


def test_state_of_another_model_is_refused():
    optimizer = Muon(parameters().items(), lr=0.01)
    optimizer.step(gradients(1), 1.0, ALONE)
    state = optimizer.state_tensors()
    with pytest.raises(ValueError, match=r"has no momentum of layers\.0\.q\.weight"):
        Muon(parameters().items(), lr=0.01).load_state_tensors(
            {k: v for k, v in state.items() if k != "momentum.layers.0.q.weight"}
        )
    with pytest.raises(ValueError, match=r"'layers.0.norm.weight' has shape \(5,\), expected \(6,\)"):
        Muon(parameters().items(), lr=0.01).load_state_tensors(
            {**state, "exp_avg.layers.0.norm.weight": torch.zeros(5)}
        )
    with pytest.raises(ValueError, match="'other', which is not among the parameters"):
        Muon(parameters().items(), lr=0.01).load_state_tensors({**state, "exp_avg.other": torch.zeros(5)})


@pytest.mark.parametrize("kind", [Muon, AdamW])
def test_a_learning_rate_of_zero_is_refused(kind):
    with pytest.raises(ValueError, match="lr must be positive, got 0"):
        kind(parameters().items(), lr=0)
