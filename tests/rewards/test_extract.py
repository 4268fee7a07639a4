"""Which part of a response is its final answer."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.rewards.accuracy import Accuracy, accuracy_check
from components.rewards.extract import boxes, final_answer
from tests.rewards.cases import says, task

ALL = ("answer", "boxed", "hashes")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>x</think><answer>42</answer>", "42"),
        ("<think>x</think>So \\boxed{42}.", "42"),
        ("<think>x</think>It is\n#### 42\n", "42"),
        ("<think>\\boxed{41}</think>I give up", None),  # a box inside the thinking
        ("<think><answer>41</answer></think>\\boxed{42}", "42"),
        ("<think>a</think>b</think><answer>42</answer>", "42"),  # the last </think> counts
        ("<think>x</think><answer>41</answer> no, <answer>42</answer>", "42"),
        ("<think>x</think><answer>42</answer><answer>4", "42"),  # the last complete pair
        ("<think>x</think>final answer is $42$. \\boxed{41}", "41"),
        ("<think>x</think>\\boxed{41}, so <answer>42</answer>", "42"),
        ("<think>x</think><answer>41</answer>, no: \\boxed{42}", "42"),
        ("<think>x</think><answer>$\\boxed{42}$</answer>", "42"),
        ("<think>x</think><answer>\\boxed{41} or \\boxed{42}</answer>", "\\boxed{41} or \\boxed{42}"),
        ("<think>x</think>\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<think>x</think>\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("<think>x</think>\\boxed{\\boxed{42}}", "42"),
        ("<think>x</think>\\boxed{\\frac{1}{2}", None),  # its brace is never closed
        ("<think>x</think>{ \\boxed{42}", "42"),
        ("<think>x</think>} \\boxed{42}", "42"),
        ("<think>x</think>\\boxed {42}", "42"),
        ("<think>x</think>\\boxed{41", None),
        ("<think>x</think>\\boxed{}", None),
        ("<think>x</think><answer> </answer>", None),
        ("<think>x</think></answer>42<answer>", None),
        ("<think>\\boxed{42}", None),  # the thought is still open
        ("<think>x</think><answer>42</answer><think>", None),
        ("\\boxed{42}", "42"),  # no thought was asked for
        ("42", None),
        ("", None),
    ],
)
def test_the_last_complete_answer_after_the_thinking_counts(response: str, answer: str | None) -> None:
    assert final_answer(response, ALL) == answer


def test_only_accepted_forms_count() -> None:
    response = "<think>x</think>#### 1\n\\boxed{2} <answer>3</answer>"
    assert [final_answer(response, (form,)) for form in ALL] == ["3", "2", "1"]
    assert final_answer("<think>x</think>\\boxed{2}", ("answer", "hashes")) is None


def test_a_prefilled_thought_is_part_of_the_response() -> None:
    accuracy = Accuracy()
    completion = "6*7=42</think><answer>42</answer>"
    assert accuracy(task("42", "exact"), says("<think>" + completion)) == 1.0
    assert accuracy(task("42", "exact"), says(completion)) == 0.0


@pytest.mark.parametrize(
    "nasty",
    [
        "\\boxed{" * 143_000,
        "\\boxed{" * 71_000 + "}" * 71_000,
        "\\boxed" + " " * 1_000_000,
        "\\boxed  " * 125_000,
        "{" * 1_000_000 + "\\boxed{",
        "\\" * 1_000_000 + "boxed{",
        "<answer>" * 125_000,
        "</answer>" * 111_000,
        "</answer><answer>" * 60_000,
        "<think></think>" * 66_000,
        "####" * 250_000,
        "####\n" * 200_000,
    ],
    ids=lambda text: text[:12],
)
def test_extraction_takes_linear_time_on_a_megabyte(nasty: str) -> None:
    def seconds(text: str) -> float:
        start = time.process_time()
        final_answer(text, ALL)
        boxes(text)
        return time.process_time() - start

    assert seconds(nasty) < 60 * seconds(nasty[: len(nasty) // 10]) + 0.5  # quadratic would be 100


pieces = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "{", "}", "\\{", "\\", "####", "\n", "4"]
)


@given(st.lists(pieces, max_size=40).map("".join))
def test_extraction_never_fails_and_never_reads_the_thinking(text: str) -> None:
    answer = final_answer(text, ALL)
    if answer is not None:
        assert answer == answer.strip() != ""
        assert answer in text[text.rfind("</think>") + 1 :]
    for start, end in boxes(text):
        inside = text[start:end].replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert inside.count("{") == inside.count("}")


@given(st.text(max_size=60).filter(lambda s: s.strip() and not set("\\{}<#") & set(s)))
def test_whatever_is_answered_comes_back(answer: str) -> None:
    for form in ("<answer>{}</answer>", "\\boxed{{{}}}"):
        assert final_answer("<think>x</think>" + form.format(answer), ALL) == answer.strip()


def test_forms_that_cannot_occur_are_refused() -> None:
    assert accuracy_check({"strict": False, "accept": ["boxed"]}) == []
    with pytest.raises(ValueError, match=r"no such form 'box'. Fix: one of answer, boxed, hashes"):
        Accuracy(strict=False, accept=("box",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no effect. Fix: strict=false"):
        Accuracy(accept=("boxed",))
    with pytest.raises(ValueError, match="no form is accepted"):
        Accuracy(accept=())
