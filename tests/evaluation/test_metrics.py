import itertools

import pytest

from components.evaluation.metrics import final_answer, majority, pass_at_k, thinking


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 2), (5, 2, 3), (6, 0, 3), (6, 6, 1), (7, 3, 7), (8, 5, 4)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n, c, k):
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_of_one_is_the_share_of_right_samples():
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


def test_a_majority_decides():
    assert majority(["7", "7", "8"], [1, 1, 0]) == 1.0
    assert majority(["7", "8", "8"], [1, 0, 0]) == 0.0


def test_ties_are_split_whatever_the_order():
    for answers, correct in (
        (["7", "8"], [1, 0]),
        (["8", "7"], [0, 1]),
        (["8", "7", "7", "8", "9"], [0, 1, 1, 0, 0]),
    ):
        assert majority(answers, correct) == 0.5
    assert majority(["1", "2", "3"], [1, 0, 0]) == pytest.approx(1 / 3)


def test_samples_without_an_answer_do_not_vote():
    assert majority([None, None, "7"], [0, 0, 1]) == 1.0
    assert majority([None, None], [0, 0]) == 0.0


def test_the_final_answer_is_the_last_complete_pair_after_the_thinking():
    assert final_answer("<think><answer>1</answer></think> <answer> 2\n 3 </answer>") == "2 3"
    assert final_answer("<think>a</think><answer>1</answer><answer>2</answer>") == "2"
    assert final_answer("<think><answer>1</answer></think>2") is None
    assert final_answer("<think>a</think><answer>2") is None


def test_thinking_is_found_with_and_without_tags():
    assert thinking("<think> a b </think><answer>1</answer>") == "a b"
    assert thinking("a b <answer>1</answer>") == "a b"
