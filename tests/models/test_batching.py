"""Who shares an update: every sample once, alike lengths together, the same for any number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.models.batching import batches, batches_by_tokens, split_by_tokens
from components.rng import stream
from components.runtime import Peers

ADDRESS = (0, "sft", 0)
lengths_of = st.lists(st.integers(1, 60), max_size=200)


@given(lengths_of, st.integers(1, 40))
def test_every_sample_is_in_one_batch(lengths, size):
    plan = batches(lengths, size, ADDRESS)
    assert sorted(i for batch in plan for i in batch) == list(range(len(lengths)))
    assert sorted(map(len, plan), reverse=True)[: len(lengths) // size] == [size] * (len(lengths) // size)


@given(lengths_of, st.integers(1, 300))
def test_token_budgets_hold_except_for_a_sample_that_exceeds_them_alone(lengths, budget):
    plan = batches_by_tokens(lengths, budget, ADDRESS)
    assert sorted(i for batch in plan for i in batch) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def test_lengths_are_alike_inside_a_batch_and_the_order_is_shuffled():
    lengths = [stream("l", i).randrange(10, 90) for i in range(640)]
    plan = batches(lengths, 32, ADDRESS)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in plan)
    assert padded < 1.12 * sum(lengths)  # 1.7 without sorting
    longest = [max(lengths[i] for i in batch) for batch in batches(lengths, 32, ADDRESS, window=20)]
    assert longest != sorted(longest)


def test_the_address_decides():
    lengths = list(range(100))
    assert batches(lengths, 8, ADDRESS) == batches(lengths, 8, ADDRESS)
    assert batches(lengths, 8, ADDRESS) != batches(lengths, 8, (0, "sft", 1))


def test_ranks_share_the_last_batch_of_one():
    plan = batches([5] * 9, 4, ADDRESS)
    last = next(batch for batch in plan if len(batch) == 1)
    assert [Peers(rank, 2).shard(last) for rank in (0, 1)] == [last, []]


def test_micro_batches_of_a_shard():
    assert split_by_tokens([3, 1, 0], [4, 2, 9, 2], 8) == [[3, 1], [0]]
    assert split_by_tokens([3, 1, 0], [4, 2, 9, 2], 12) == [[3, 1, 0]]
    assert split_by_tokens([], [], 12) == []


@pytest.mark.parametrize("size", [0, -1])
def test_empty_batches_are_refused(size):
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
        batches([1, 2], size, ADDRESS)
