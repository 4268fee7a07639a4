"""Credit per turn, by hand."""

import pytest
import torch

from components.losses.advantage import group_center, leave_one_out
from components.losses.turn_advantage import turn_level, turn_numbers, turn_rewards
from components.types import Group, Message, Rollout, Score, Task

MASK = torch.tensor(
    [
        [1, 1, 0, 1, 0, 1],  # three turns
        [1, 0, 0, 1, 1, 0],  # two
        [0, 1, 1, 1, 0, 0],  # one, after something of the environment's
        [1, 0, 1, 0, 1, 0],  # three, but failed
    ]
).bool()
GROUP = torch.zeros(4, dtype=torch.long)
VALID = torch.tensor([True, True, True, False])
REWARD = torch.tensor([1.0, 0.0, 0.5, 9.0])
TURNS = torch.tensor([[-1.0, 0.0, -2.0], [-1.0, 4.0, 0.0], [2.0, 0.0, 0.0], [7.0, 7.0, 7.0]])


def test_positions_are_numbered_by_turn():
    assert turn_numbers(MASK).tolist() == [
        [0, 0, 0, 1, 1, 2],
        [0, 0, 0, 1, 1, 1],
        [-1, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 2, 2],
    ]


def test_each_turn_is_compared_with_the_same_turn_of_its_group():
    got = turn_level(REWARD, GROUP, VALID, MASK, TURNS, base=group_center)
    # To go: [-3 -2 -2], [3 4], [2]. Means: (-3+3+2)/3 = 2/3, (-2+4)/2 = 1; the third turn is alone.
    first, second = [-3 - 2 / 3, 3 - 2 / 3, 2 - 2 / 3], [-3.0, 3.0]
    expected = torch.tensor(
        [
            [0.5 + first[0], 0.5 + first[0], 0, 0.5 + second[0], 0, 0.5],
            [-0.5 + first[1], 0, 0, -0.5 + second[1], -0.5 + second[1], 0],
            [0, first[2], first[2], first[2], 0, 0],
            [0, 0, 0, 0, 0, 0],
        ]
    )
    torch.testing.assert_close(got, expected)


def test_the_discount_counts_per_turn_and_the_weight_scales_the_turns_part_only():
    plain = leave_one_out(REWARD, GROUP, VALID)[:, None] * MASK
    whole = turn_level(REWARD, GROUP, VALID, MASK, TURNS, gamma=0.5)
    # To go with γ = 1/2: [-1.5 -1 -2], [1 4], [2].
    assert whole[0, 0] - plain[0, 0] == pytest.approx(-1.5 - 0.5)
    assert whole[1, 3] - plain[1, 3] == pytest.approx(4 - 1.5)
    half = turn_level(REWARD, GROUP, VALID, MASK, TURNS, gamma=0.5, weight=0.5)
    torch.testing.assert_close(half - plain, (whole - plain) / 2)


def test_without_turn_rewards_it_is_its_base():
    for turns in (torch.zeros(4, 0), torch.zeros(4, 5)):
        got = turn_level(REWARD, GROUP, VALID, MASK, turns)
        torch.testing.assert_close(got, (leave_one_out(REWARD, GROUP, VALID)[:, None] * MASK).to(got.dtype))


def test_groups_do_not_mix_and_their_order_does_not_matter():
    group = torch.tensor([7, 3, 7, 3])
    valid = torch.ones(4, dtype=torch.bool)
    got = turn_level(REWARD, group, valid, MASK, TURNS)
    order = torch.tensor([2, 1, 3, 0])
    torch.testing.assert_close(turn_level(REWARD[order], group[order], valid, MASK[order], TURNS[order]), got[order])
    for rows in ([0, 2], [1, 3]):
        alone = turn_level(REWARD[rows], group[rows], valid[rows], MASK[rows], TURNS[rows])
        torch.testing.assert_close(alone, got[rows])


def test_nothing_gives_nothing():
    empty = turn_level(REWARD, GROUP, VALID, MASK[:, :0], TURNS)
    assert empty.shape == (4, 0)
    none = torch.zeros(0)
    assert turn_level(none, none.long(), none.bool(), MASK[:0], TURNS[:0]).shape == (0, 6)


def test_settings_out_of_range_are_refused():
    for bad in ({"gamma": 1.5}, {"weight": -1.0}):
        with pytest.raises(ValueError, match="turn_level"):
            turn_level(REWARD, GROUP, VALID, MASK, TURNS, **bad)


def test_turn_rewards_of_groups_are_padded_with_zero():
    def rollout(*rewards):
        return Rollout("t", (), (), (), (), "", "stop", turn_rewards=rewards)

    task = Task("t", (Message("user", "q"),), None, "exact")
    groups = [
        Group(task, (rollout(1.0, 2.0), rollout()), (Score(0.0),) * 2),
        Group(task, (rollout(3.0),), (Score(0.0),)),
    ]
    assert turn_rewards(groups).tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]
    assert turn_rewards([]).shape == (0, 0)
