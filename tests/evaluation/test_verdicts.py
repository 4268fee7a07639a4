"""The promotion gate names what a stage did not do and what it paid, and accuses nobody by chance."""

import random

import pytest

from components.evaluation.gate import judge


def row(task, sample, right, *, kind="reasoning", family="sum", **more):
    return {
        "task_id": task,
        "sample": sample,
        "family": family,
        "level": 1,
        "kind": kind,
        "correct": float(right),
        "format_ok": 1.0,
        "language": 1.0,
        "length": 20,
        "finish": "stop",
        "response": "<think> so</think><answer>3</answer>",
        **more,
    }


def reasoning(rights, n=40, **more):
    """n prompts, each with these samples."""
    return [row(f"t{i}", s, int(c), **more) for i in range(n) for s, c in enumerate(rights)]


def requests(family, rights, n=40, **more):
    return [
        row(f"{family}{i}", s, int(c), kind="general", family=family, **more)
        for i in range(n)
        for s, c in enumerate(rights)
    ]


def judged(before, after):
    return judge(before, after, stage="rl_1", against="cold_start")


def test_a_stage_that_makes_something_better_is_promoted_with_the_test_that_says_so():
    found = judged(reasoning("1000"), reasoning("1110"))
    assert found.decision == "promoted"
    assert [(g["metric"], g["effect"]) for g in found.gains] == [("pass@1", 0.5)]
    assert "pass@1 +50.0 points" in found.text
    assert "p < 0.001 (6 paired tests on 40 prompts, Holm)" in found.text


def test_a_stage_that_changes_nothing_did_not_help_and_the_line_says_how_much_could_have_been_missed():
    rows = reasoning("1010")
    found = judged(rows, rows)
    assert (found.decision, found.gains, found.prices) == ("no help", [], [])
    assert found.text.startswith(
        "did not help: nothing is better than cold_start beyond chance; pass@1 +0.0 points [-7.5"
    )
    assert "Fix: leave it out" in found.text


def test_accuracy_for_format_is_a_price():
    found = judged(reasoning("1110", format_ok=0.5), reasoning("1000"))
    assert found.decision == "paid"
    assert [p["metric"] for p in found.prices] == ["pass@1"]
    assert "format +50.0 points" in found.text
    assert "but pass@1 -50.0 points" in found.text


def test_what_the_model_could_do_at_all_is_a_price():
    """Half of the prompts are now always right, the others never: pass@1 stays, pass@4 falls."""
    before, after = reasoning("1100"), [row(f"t{i}", s, i % 2) for i in range(40) for s in range(4)]
    found = judged(before, after)
    assert found.decision == "worse"
    assert [p["metric"] for p in found.prices] == ["pass@4"]


def test_safety_bought_by_refusing_benign_requests_is_a_price():
    sorry = {"response": "<think> no</think><answer>sorry , i can not help with that</answer>"}
    before = requests("unsafe", "0000") + requests("benign", "1111")
    after = requests("unsafe", "1111", **sorry) + requests("benign", "0000", **sorry)
    found = judged(before, after)
    assert found.decision == "paid"
    assert [g["metric"] for g in found.gains] == ["unsafe_refused"]
    assert [p["metric"] for p in found.prices] == ["benign_answered", "over_refusal"]


def test_a_model_that_learns_to_answer_and_refuses_some_on_the_way_has_paid_nothing():
    sorry = {"response": "<think> no</think><answer>sorry , i can not help with that</answer>"}
    before = requests("benign", "0000")
    after = requests("benign", "1111", n=36) + [
        r | {"task_id": f"benign{i}"}
        for i, r in zip((36, 37, 38, 39) * 4, requests("benign", "0000", n=4, **sorry), strict=True)
    ]
    found = judged(before, after)
    assert found.decision == "promoted"


def test_longer_answers_without_more_right_ones_are_a_price_and_with_them_are_not():
    short, long = reasoning("1010", format_ok=0.5), reasoning("1010", length=30)
    found = judged(short, long)
    assert found.decision == "paid"
    assert "+50% length (+10.0 tokens, p < 0.001)" in found.text
    assert judged(reasoning("1000"), reasoning("1110", length=30)).decision == "promoted"


def test_a_loss_within_the_tolerance_is_no_price():
    """One percent of the answers lost their format, on every prompt: beyond chance, and not worth a stop."""
    found = judged(reasoning("1000", n=60), reasoning("1110", n=60, format_ok=0.99))
    assert found.decision == "promoted"


def test_answers_that_are_cut_off_are_a_price():
    found = judged(reasoning("1010"), reasoning("1010", finish="length"))
    assert (found.decision, [p["metric"] for p in found.prices]) == ("worse", ["truncated"])


def test_chance_alone_accuses_one_stage_in_twenty_at_most():
    """The same model sampled twice, 200 times: nothing is better, nothing worse; Holm keeps both below 5 % in all."""
    luck = random.Random(1)

    def sampled():
        return [row(f"t{i}", s, luck.random() < 0.4, length=luck.randint(10, 30)) for i in range(24) for s in range(2)]

    decisions = [judge(sampled(), sampled(), stage="b", against="a", address=(i,)).decision for i in range(200)]
    assert decisions.count("no help") >= 184  # of 190 expected; fewer than 1 in 300 tries by luck


def test_a_verdict_is_json_and_the_same_every_time():
    before, after = reasoning("1000"), reasoning("1010")
    found = judged(before, after).to_json()
    assert found == judged(before, after).to_json()
    assert found["passed"] is True
    assert found["accuracy"]["effect"] == pytest.approx(0.25)
