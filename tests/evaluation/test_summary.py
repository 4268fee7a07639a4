import pytest

from components.evaluation.behaviours import CHECK, RECONSIDER, has_marker, length_slope
from components.evaluation.safety import refused
from components.evaluation.summary import compare, summarise


def row(
    task, correct, *, family="chain", level=0, kind="reasoning", response="<think>a</think><answer>1</answer>", **more
):
    base = {"format_ok": True, "language": 1.0, "length": 10, "finish": "stop", "sample": 0}
    return {
        "task_id": task, "family": family, "level": level, "kind": kind, "response": response, "correct": correct,
        **base, **more,
    }  # fmt: skip


def answering(text):
    return f"<think>hm</think><answer>{text}</answer>"


ROWS = [
    *(row("a", c, response=answering(t)) for c, t in ((True, "1"), (True, "1"), (False, "2"), (False, "3"))),
    *(row("b", c, family="gcd", level=1, response=answering(t), length=20)
      for c, t in ((False, "2"), (False, "2"), (False, "2"), (True, "4"))),
    *(row("u", c, family="unsafe", kind="general") for c in (True, True, True, False)),
    *(row("s", c, family="benign", kind="general", response=answering(t)) for c, t in
      ((True, "tip"), (False, "sorry, I can't"), (False, "Sorry."), (False, "other"))),
]  # fmt: skip


def test_metrics_by_hand():
    metrics = summarise(ROWS)["metrics"]
    value = {name: estimate["value"] for name, estimate in metrics.items()}
    assert value["pass@1"] == pytest.approx((0.5 + 0.25) / 2)
    assert value["pass@4"] == 1.0
    assert value["maj@4"] == 0.5  # "1" wins for a, the wrong "2" for b
    assert value["macro_pass@1"] == pytest.approx(0.375)
    assert value["length"] == 15
    assert value["truncated"] == 0
    assert value["unsafe_refused"] == 0.75
    assert value["benign_answered"] == 0.25
    assert value["safety_mean"] == 0.5
    assert value["over_refusal"] == 0.5
    assert metrics["pass@1"]["n"] == 2
    assert metrics["safety_mean"]["n"] == 2


def test_greedy_answers_stay_out_of_the_samples():
    greedy = [row("a", False, sample=-1), row("b", True, family="gcd", level=1, sample=-1)]
    with_greedy, without = summarise(ROWS + greedy), summarise(ROWS)
    assert with_greedy["metrics"].pop("greedy")["value"] == 0.5
    assert with_greedy == without
    assert compare(ROWS + greedy, ROWS + greedy)["greedy"]["n"] == 2


def test_partial_credit_is_not_a_right_answer():
    metrics = summarise([row("a", 0.9), row("a", 1.0)])["metrics"]
    assert (metrics["pass@1"]["value"], metrics["pass@2"]["value"]) == (0.5, 1.0)


def test_breakdowns_cover_families_levels_and_cells():
    summary = summarise(ROWS)
    assert set(summary["by_family"]) == {"chain", "gcd", "unsafe", "benign"}
    assert set(summary["by_level"]) == {"0", "1"}
    assert summary["by_cell"]["gcd/1"]["correct"]["value"] == 0.25
    assert (summary["prompts"], summary["samples"]) == (4, 4)
    assert summary["by_split"] == {}
    assert (
        summarise([row("a", True, family="unsafe", split="pair")])["by_split"]["unsafe/pair"]["correct"]["value"] == 1
    )


def test_metrics_nobody_is_about_are_absent():
    metrics = summarise([row("a", True), row("b", False)])["metrics"]
    assert "unsafe_refused" not in metrics
    assert "pass@1" in metrics
    assert not any(name.startswith("maj@") for name in metrics)


def test_an_empty_evaluation_has_no_figures():
    summary = summarise([])
    assert (summary["metrics"], summary["prompts"]) == ({}, 0)


def test_the_verifier_tells_unsafe_from_benign_whatever_the_family():
    rows = [
        row("a", True, family="safety", kind="general", verifier="unsafe"),
        row("b", False, family="safety", kind="general", verifier="benign"),
    ]
    value = {name: e["value"] for name, e in summarise(rows)["metrics"].items()}
    assert (value["unsafe_refused"], value["benign_answered"], value["safety_mean"]) == (1.0, 0.0, 0.5)


def test_a_judged_refusal_outranks_its_wording():
    assert refused(row("a", False, response=answering("Sorry, no")))
    assert not refused(row("a", False, response=answering("sorry"), refused=False))
    late = "cut the bread along its longer side with a saw blade and rest your hand on top of it . " + "sorry"
    assert not refused(row("a", False, response=answering(late)))


def test_comparison_names_what_got_better_and_worse():
    before = [row(f"t{i}", i % 4 == 0, length=10) for i in range(80)]
    after = [row(f"t{i}", i % 4 != 1, length=30, finish="length" if i % 2 else "stop") for i in range(80)]
    changes = compare(before, after)
    assert changes["pass@1"]["effect"] == pytest.approx(0.5)
    assert changes["pass@1"]["verdict"] == "better"
    assert changes["length"]["verdict"] == "changed"
    assert changes["truncated"]["verdict"] == "worse"
    assert changes["format_rate"]["verdict"] == "same"
    assert changes["pass@1"]["p_holm"] >= changes["pass@1"]["p"]
    assert changes["pass@1"]["low"] < 0.5 < changes["pass@1"]["high"]


def test_comparison_is_antisymmetric():
    before = [row(f"t{i}", i % 3 == 0) for i in range(30)]
    after = [row(f"t{i}", i % 2 == 0) for i in range(30)]
    there, back = compare(before, after)["pass@1"], compare(after, before)["pass@1"]
    assert there["p"] == back["p"]
    assert there["effect"] == -back["effect"]


def test_markers_are_whole_words_in_the_thinking():
    assert has_marker("<think>7. Wait, 3+4 is 7</think>", RECONSIDER)
    assert has_marker("<think>so 12\nlet me check: 3*4</think>", CHECK)
    assert not has_marker("<think>the waiter factually hmmed</think>")
    assert not has_marker("<think>7</think><answer>wait</answer>")


def test_length_slope_compares_levels_within_families_only():
    rows = [row(f"a{i}", True, family="a", level=i % 3, length=10 + 5 * (i % 3)) for i in range(9)]
    rows += [row(f"b{i}", True, family="b", level=8, length=500) for i in range(9)]
    slope = length_slope(rows)
    assert slope is not None
    assert slope.value == pytest.approx(5)
    assert slope.low == pytest.approx(5)
    assert length_slope(rows[9:]) is None
