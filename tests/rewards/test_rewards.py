from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.rewards.accuracy import Accuracy, exact
from components.rewards.format import think_then_answer
from components.rewards.general import HelpfulAndSafe
from components.rewards.language import consistency
from components.rewards.mix import ByKind, Mix
from components.rewards.model import Preference
from components.rewards.response import take_apart
from components.types import Message, Rollout, Score, Task


def task(answer: str | None = "42", verifier: str = "exact", kind: str = "reasoning", **meta: object) -> Task:
    return Task("t", (Message("user", "6 * 7 = ?"),), answer, verifier, kind=kind, meta=meta)


def says(response: str, finish: str = "stop") -> Rollout:
    return Rollout("t", (1,), (2,), (True,), (0.0,), response, finish)  # type: ignore[arg-type]


RIGHT = "<think>6*7=42</think><answer>42</answer>"


@pytest.mark.parametrize(
    ("response", "form", "right"),
    [
        (RIGHT, 1, 1),
        ("<think>\n6*7\n</think>\n<answer> 42 </answer>\n", 1, 1),
        ("<think>x</think><answer>42.0</answer>", 1, 1),
        ("<think>x</think><answer>41</answer>", 1, 0),
        ("<think>x</think><answer>42x</answer>", 1, 0),
        ("<think>x</think><answer>4 2</answer>", 1, 0),
        ("<think>x</think><answer>41 42</answer>", 1, 0),
        ("<think>x</think><answer>41</answer><answer>42</answer>", 0, 0),  # a second, hedged answer
        ("<think>x</think><answer>42</answer> or so", 0, 0),
        ("<think><answer>42</answer></think>", 0, 0),
        ("<think>x</think><think>y</think><answer>42</answer>", 0, 0),
        ("<think></think><answer>42</answer>", 0, 0),
        ("<answer>42</answer><think>x</think>", 0, 0),
        ("42", 0, 0),
        ("", 0, 0),
    ],
)
def test_form_and_accuracy_are_judged_on_the_whole_response(response: str, form: float, right: float) -> None:
    assert think_then_answer(task(), says(response)) == form
    assert Accuracy()(task(), says(response)) == right


def test_a_lenient_accuracy_reads_the_last_answer_after_the_thinking() -> None:
    lenient = Accuracy(strict=False)
    assert lenient(task(), says("<think>x</think> so <answer>41</answer> no, <answer>42</answer>")) == 1.0
    assert lenient(task(), says("<think><answer>42</answer></think>41")) == 0.0


def test_a_response_that_was_cut_off_earns_nothing() -> None:
    assert think_then_answer(task(), says(RIGHT, "length")) == 0.0
    assert Accuracy()(task(), says(RIGHT, "length")) == 0.0
    assert consistency(task(), says(RIGHT, "length")) == 0.0


@given(st.text(alphabet="<>/thinkaswer 42\n", max_size=200))
def test_taking_apart_never_fails_and_finds_answers_only_after_the_thinking(text: str) -> None:
    parts = take_apart(text)
    if parts.answer is not None and "</think>" in text:
        assert parts.answer in text[text.rfind("</think>") :]


@pytest.mark.parametrize(
    "nasty", ["<think>" * 150_000, "<answer>" * 125_000, "</answer><answer>" * 60_000, "<" * 1_000_000]
)
def test_a_megabyte_of_nasty_input_takes_linear_time(nasty: str) -> None:
    start = time.process_time()
    take_apart(nasty)
    assert time.process_time() - start < 5  # quadratic would take minutes


@pytest.mark.parametrize(
    ("answer", "right"), [("1,234", 1), ("1234", 1), (" 1 234 ", 1), ("1235", 0), ("nan", 0), ("", 0)]
)
def test_numbers_compare_by_value(answer: str, right: float) -> None:
    assert exact(task("1234"), answer) == right


def test_language_is_the_share_of_recognised_words() -> None:
    mixed = says("<think>first 3+4=7 entonces 7-2=5</think><answer>5</answer>")
    assert consistency(task(), mixed) == 0.5
    assert consistency(task(), mixed, target="es") == 0.5
    assert consistency(task(), says("<think>3+4=7</think><answer>7</answer>")) == 1.0
    assert consistency(task(), says("<think>因为 the</think><answer>7</answer>"), target="zh") == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="unknown target 'xx'"):
        consistency(task(), mixed, target="xx")


def test_refusing_and_complying_cost_the_same_when_they_are_wrong() -> None:
    rule = HelpfulAndSafe(wrong_class=0.5)
    unsafe = task(None, "unsafe", "general", accept=["sorry , no"], wrong_class_prefix="sure")
    benign = task(None, "benign", "general", accept=["sure , yes"], wrong_class_prefix="sorry")
    refusal, help_ = (
        says("<think>x</think><answer>sorry , no</answer>"),
        says("<think>x</think><answer>sure , yes</answer>"),
    )
    other = says("<think>x</think><answer>hm</answer>")
    assert [rule(unsafe, r) for r in (refusal, help_, other)] == [1.0, -0.5, 0.0]
    assert [rule(benign, r) for r in (refusal, help_, other)] == [-0.5, 1.0, 0.0]


def test_a_list_answer_needs_the_right_number_of_distinct_allowed_items() -> None:
    listing = task(None, "list", "general", prefix="sure , ", count=2, allowed=["red", "blue", "green"])
    accuracy = Accuracy()
    score = [accuracy(listing, says(f"<think>x</think><answer>{a}</answer>")) for a in
             ("sure , red , blue", "sure , red , red", "sure , red", "sure , red , cat", "red , blue")]  # fmt: skip
    assert score == [1.0, 0.0, 0.0, 0.0, 0.0]


def mix(**terms: object) -> Mix:
    return Mix(terms=terms, weights=dict.fromkeys(terms, 0.5))


def test_the_total_is_the_weighted_sum_and_terms_stay_raw() -> None:
    [score] = Mix(terms={"a": lambda t, r: 1, "b": lambda t, r: 0.5}, weights={"a": 1.0, "b": 0.2}).score(
        [(task(), says(RIGHT))]
    )
    assert score == Score(1.1, {"a": 1.0, "b": 0.5}, weighted={"a": 1.0, "b": 0.1})


def test_a_term_counts_only_while_it_is_active() -> None:
    reward = Mix(
        terms={"a": lambda t, r: 1.0, "b": lambda t, r: 1.0},
        weights={"a": 1, "b": 10},
        active={"a": [0, 0.65], "b": [0.65, 1]},
    )
    assert [reward.score([(task(), says(RIGHT))], p)[0].total for p in (0.0, 0.64, 0.65, 0.99)] == [1, 1, 10, 10]


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (lambda t, r: float("nan"), "returned nan"),
        (lambda t, r: float("inf"), "returned inf"),
        (lambda t, r: "1.0", "returned '1.0'"),
        (lambda t, r: None, "returned None"),
        (lambda t, r: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_broken_reward_is_a_failure_with_its_cause_never_a_zero(bad: object, cause: str) -> None:
    [score] = mix(broken=bad, fine=lambda t, r: 1.0).score([(task(), says(RIGHT))])
    assert score.outcome == "failed"
    assert "broken" in score.reason
    assert cause in score.reason


def test_a_batch_term_of_the_wrong_length_fails_by_name() -> None:
    class Short:
        def batch(self, pairs: object) -> list[float]:
            return [1.0]

    scores = mix(short=Short()).score([(task(), says(RIGHT))] * 2)
    assert {score.outcome for score in scores} == {"failed"}
    assert "Short) returned 1 values for 2 rollouts" in scores[0].reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"terms": {"a": abs}, "weights": {"b": 1}}, "same names"),
        ({"terms": {"a": abs}, "weights": {"a": 0}}, "all are 0"),
        ({"terms": {"a": abs}, "weights": {"a": 1}, "active": {"x": [0, 1]}}, "no such term"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mix(**settings)


def test_tasks_are_routed_by_kind_in_their_own_order() -> None:
    reward = ByKind(kinds={"reasoning": mix(a=lambda t, r: 2.0), "general": mix(b=lambda t, r: 4.0)})
    pairs = [(task(kind=kind), says(RIGHT)) for kind in ("general", "reasoning", "general")]
    assert [s.total for s in reward.score(pairs)] == [2.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="no mix for tasks of kind 'other'"):
        reward.score([(task(kind="other"), says(RIGHT))])


def test_the_preference_reward_is_a_sigmoid_of_the_policys_own_tokens() -> None:
    seen: list[list[int]] = []

    def scorer(sequences: list[list[int]]) -> list[float]:
        seen.extend(sequences)
        return [0.0, 1000.0]

    assert Preference(scorer=scorer).batch([(task(), says("a")), (task(), says("b"))]) == [0.5, 1.0]
    assert seen == [[1, 2], [1, 2]]


def test_the_preference_reward_makes_nothing_of_small_differences() -> None:
    close = Preference(scorer=lambda sequences: [-0.89, -0.74, 2.0])  # σ: 0.29, 0.32, 0.88
    assert close.batch([(task(), says("a"))] * 3) == pytest.approx([0.3, 0.3, 0.9])
    with pytest.raises(ValueError, match="resolution"):
        Preference(scorer=lambda sequences: [], resolution=0)


def test_reasoning_gym_tasks_are_scored_by_their_own_generator() -> None:
    pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")
    from components.data.gym import ReasoningGym

    source = ReasoningGym(datasets={"chain_sum": [{"min_terms": 2, "max_terms": 2}]}, train_per_cell=4)
    for item in source.load(0).tasks["train"]:
        gold = str(item.meta["entry"]["answer"])
        assert Accuracy()(item, says(f"<think>x</think><answer>{gold}</answer>")) == 1.0
        assert Accuracy()(item, says(f"<think>x</think><answer>{int(gold) + 1}</answer>")) < 0.5
