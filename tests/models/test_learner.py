"""The optimiser loop: accumulation, ranks, resume, bad steps."""

import math
import os
import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from components.models.learner import Learner, TrainingDiverged
from components.models.optim import AdamW, Muon
from components.models.schedule import constant, cosine
from components.runtime import Peers

ROWS, STEPS = 12, 4


def network(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3, bias=False))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) * 0.3)
    return net.to(dtype)


def data(step):
    draw = torch.Generator().manual_seed(1000 + step)
    return torch.randn(ROWS, 5, generator=draw), torch.randn(ROWS, 3, generator=draw)


def learner_of(net, kind=Muon, peers=None, **options):
    schedule = options.pop("schedule", partial(cosine, total=STEPS))
    return Learner(net.named_parameters(), kind(net.named_parameters(), lr=0.01), schedule, peers, **options)


def loss_of(net, rows, step):
    x, y = data(step)
    dtype = next(net.parameters()).dtype
    return ((net(x[rows].to(dtype)) - y[rows].to(dtype)) ** 2).sum() / ROWS


def run(parts, steps=STEPS, dtype=torch.float32, peers=None, **options):
    """Train on the same data cut into the given micro-batches of this rank; (weights, stats)."""
    net = network(dtype)
    learner = learner_of(net, peers=peers, **options)
    stats = [learner.step([partial(loss_of, net, rows, step) for rows in parts]) for step in range(steps)]
    return [p.detach() for p in net.parameters()], stats


WHOLE = [list(range(ROWS))]


@pytest.mark.parametrize("parts", [[[0, 1], [2], list(range(3, ROWS))], [[i] for i in range(ROWS)]])
def test_micro_batches_change_an_update_by_rounding_only(parts):
    (weights, stats), (expected, reference) = run(parts), run(WHOLE)
    for w, e in zip(weights, expected, strict=True):
        torch.testing.assert_close(w, e, rtol=0, atol=1e-6)  # losing one row moves weights by > 1e-3
    assert [s.loss for s in stats] == pytest.approx([s.loss for s in reference], rel=1e-6)
    assert [s.grad_norm for s in stats] == pytest.approx([s.grad_norm for s in reference], rel=1e-5)


def test_the_first_update_is_the_hand_computed_one():
    weight = nn.Parameter(torch.tensor([3.0, -4.0]))
    learner = Learner([("w", weight)], Descent([("w", weight)]), partial(constant, total=9), max_grad_norm=1.0)
    stats = learner.step([lambda: weight[0] * 3.0, lambda: weight[1] * 4.0])
    assert stats.loss == 3 * 3 - 4 * 4
    assert stats.grad_norm == pytest.approx(5.0)
    assert stats.lr == 0.5
    assert stats.skipped == ""
    # clipped to norm 1: (0.6, 0.8), at rate 0.5
    torch.testing.assert_close(weight.detach(), torch.tensor([2.7, -4.4]))


class Descent:
    """Plain gradient descent: shows that any optimiser with the three methods will do."""

    lr = 0.5

    def __init__(self, named):
        self.named = dict(named)

    @torch.no_grad()
    def step(self, gradients, multiplier, peers):
        for name, p in self.named.items():
            p -= self.lr * multiplier * gradients[name]

    def state_tensors(self):
        return {}

    def load_state_tensors(self, tensors):
        assert not tensors


def _rank(rank, port, shares, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    results = {name: run(parts[rank], peers=Peers(rank, 2)) for name, parts in shares.items()}
    (folder / str(rank)).write_bytes(pickle.dumps(results))
    dist.destroy_process_group()


def test_two_ranks_equal_one_to_rounding_and_a_rank_without_data_joins_in(free_port, tmp_path):
    halves = [list(range(0, ROWS, 2))], [list(range(1, ROWS, 2))]
    shares = {
        "halves": halves,
        "uneven": ([[0], [1, 2], [3]], [list(range(4, ROWS))]),
        "one idle": (WHOLE, []),
        "both idle": ([], []),
    }
    mp.spawn(_rank, (free_port, shares, tmp_path), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    ranks = [pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in (0, 1)]
    expected, reference = run(WHOLE)
    for name in ("halves", "uneven", "one idle"):
        for weights, stats in (ranks[0][name], ranks[1][name]):
            assert [s.loss for s in stats] == pytest.approx([s.loss for s in reference], rel=1e-6)
            for w, e in zip(weights, expected, strict=True):
                torch.testing.assert_close(w, e, rtol=0, atol=1e-6, msg=name)
        assert all(torch.equal(a, b) for a, b in zip(ranks[0][name][0], ranks[1][name][0], strict=True))
    for weights, stats in (ranks[0]["both idle"], ranks[1]["both idle"]):
        assert [s.skipped for s in stats] == ["empty"] * STEPS
        assert all(torch.equal(w, p) for w, p in zip(weights, network().parameters(), strict=True))


@pytest.mark.parametrize("kind", [Muon, AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stopping_and_resuming_gives_the_same_weights_bit_for_bit(kind, dtype):
    straight = network(dtype)
    learner = learner_of(straight, kind)
    for step in range(STEPS):
        learner.step([partial(loss_of, straight, rows, step) for rows in ([0, 1], [2, 3, 4])])
    first = network(dtype)
    early = learner_of(first, kind)
    for step in range(2):
        early.step([partial(loss_of, first, rows, step) for rows in ([0, 1], [2, 3, 4])])
    tensors, state = early.state()
    second = network(dtype)
    second.load_state_dict(first.state_dict())
    late = learner_of(second, kind)
    late.load_state(tensors, state)
    assert late.steps == 2
    for step in range(2, STEPS):
        late.step([partial(loss_of, second, rows, step) for rows in ([0, 1], [2, 3, 4])])
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30, 1e12])
def test_a_bad_step_is_skipped_counted_and_forgotten(bad):
    net = network()
    learner = learner_of(net)
    good = partial(loss_of, net, [0, 1], 0)
    learner.step([good])
    before = [p.detach().clone() for p in net.parameters()]
    state = {k: v.clone() for k, v in learner.state()[0].items()}
    stats = learner.step([good, lambda: good() * bad])
    assert stats.skipped == "nonfinite"
    assert learner.bad_steps == 1
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(torch.equal(v, state[k]) for k, v in learner.state()[0].items())
    assert learner.step([good]).skipped == ""
    assert not any(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_three_bad_steps_in_a_row_stop_with_the_weights_of_the_last_good_one():
    net = network()
    learner = learner_of(net)
    bad = lambda: torch.cat([p.flatten() for p in net.parameters()]).sum() * math.nan  # noqa: E731
    good = partial(loss_of, net, [0], 0)
    for losses in ([bad], [bad], [good], [bad], [bad]):  # a good one in between starts the count again
        learner.step(losses)
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(TrainingDiverged, match=r"3 updates in a row .* update 6 the loss was nan.*3 of 3 gradients"):
        learner.step([bad])
    assert learner.bad_steps == 5
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_an_update_without_micro_batches_keeps_everything_but_the_schedule():
    net = network()
    learner = learner_of(net)
    learner.step([partial(loss_of, net, [0], 0)])
    before = [p.detach().clone() for p in net.parameters()]
    assert learner.step([]).skipped == "empty"
    assert learner.steps == 2
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_a_loss_without_gradient_counts_as_a_micro_batch():
    net = network()
    stats = learner_of(net).step([lambda: torch.zeros(()), partial(loss_of, net, [0], 0)])
    assert stats.skipped == ""


def test_gradients_that_were_reset_in_between_do_not_get_lost():
    net = network()
    learner = learner_of(net)
    losses = [partial(loss_of, net, [0, 1], 0)]
    first = learner.step(losses).grad_norm
    net.zero_grad(set_to_none=True)
    assert learner.step(losses).grad_norm == pytest.approx(first, rel=0.5)


def test_the_rate_follows_the_schedule():
    net = network()
    learner = learner_of(net, schedule=lambda step: [1.0, 0.25][step])
    assert [learner.step([partial(loss_of, net, [0], 0)]).lr for _ in range(2)] == [0.01, 0.0025]


def test_nothing_to_train_is_an_error():
    net = network().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter needs a gradient"):
        learner_of(net)
