# ruff: noqa: E501
"""The terms beside accuracy: process, format, language, length, repetition."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.rewards.accuracy import Accuracy
from components.rewards.equations import equations
from components.rewards.format import ToolCalls, think_then_answer, violations
from components.rewards.language import consistency, consistency_check
from components.rewards.length import Concise, Cosine, soft_overlong
from components.rewards.process import Process
from components.rewards.repetition import ngram_repetition
from components.types import Score
from tests.rewards.cases import says, task, thinks


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3 + 4*2 = 11", {"3+4*2 = 11": True}),
        ("3+4=8", {"3+4 = 8": False}),
        ("so 16 - 3 - 4 = <<16-3-4=9>>9 eggs", {"16-3-4 = 9": True}),
        ("80,000*1.5=120,000", {"80000*1.5 = 120000": True}),
        ("$3 + $4 = $7", {"3+4 = 7": True}),
        ("6 \\times 7 = 42", {"6*7 = 42": True}),
        ("3 x 4 = 12, 8 ÷ 2 = 4", {"3*4 = 12": True, "8/2 = 4": True}),
        ("(1+2)*(3+4)=21", {"(1+2)*(3+4) = 21": True}),
        ("2^3^2=512, -2^2=-4", {"2^3^2 = 512": True, "-2^2 = -4": True}),
        ("7 = 3+4", {"7 = 3+4": True}),
        ("2+2 = 3+1 = 5", {"2+2 = 3+1": True, "3+1 = 5": False}),
        ("1. 3+4=7\n2. 3-4=-1", {"3+4 = 7": True, "3-4 = -1": True}),
        ("10/3 = 3.33, 10/3 = 3.34, 2/3 = 0.67", {"10/3 = 3.33": True, "10/3 = 3.34": False, "2/3 = 0.67": True}),
        ("1+1=2 1+1=2 1+1=2", {"1+1 = 2": True}),  # saying it again proves nothing more
        ("x = 3 + 4 = 7", {"3+4 = 7": True}),
        # nothing that can be verified: variables, functions, trivia, fragments, what has no value
        *((text, {}) for text in (
            "x + 3 = 7", "2x + 3 = 7", "3 = 2x + 1", "x - 3 = 4", "x^2 = 9", "f(3) = 7", "5! = 120", "3x4=12", "3 + 4 = y",
            "3+4 = 7x", "42=42", "41=42", "2*(3=6", "1/0=1", "9^9^9=1", "3+4=\n7", "3 apples + 4 apples = 7 apples",
            "5*20% = 1", "()=()", "1+2)=3", "= 7", "3 + 4", "",
        )),
    ],
)  # fmt: skip
def test_equations_between_numbers_are_found_and_checked(text: str, found: dict[str, bool]) -> None:
    assert equations(text) == found


@given(st.text("0123456789.,+-*/^()= x\n", max_size=80))
def test_looking_for_equations_never_fails(text: str) -> None:
    equations(text)


@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from("+-*"), st.integers(-2, 2))
def test_an_equation_holds_exactly_if_python_says_so(a: int, b: int, sign: str, off: int) -> None:
    right = {"+": a + b, "-": a - b, "*": a * b}[sign]
    assert list(equations(f"so {a} {sign} {b} = {right + off}.").values()) == [off == 0]


def test_process_is_the_share_of_steps_that_hold() -> None:
    def share(thinking: str, **info: float) -> float:
        return Process()(task(), thinks(thinking, **info)).total

    assert share("3+4=7 and 7*6=43") == 0.5
    assert share("I just know it") == 0.0
    assert Process(nothing=0.25)(task(), thinks("I just know it")).total == 0.25
    assert share("<tool>6*7</tool><result>42</result>", tool_calls=1, tool_invalid=0) == 1.0
    assert share("<tool>6*?</tool><result>error</result> 6*7=42", tool_calls=1, tool_invalid=1) == 0.5
    assert share("<result>42</result> 6*7=42") == 0.5  # a result that no tool gave
    assert share("6*7=41 <result>1+1=2</result>", tool_calls=1) == 0.5  # equations of the environment don't count
    assert Process(rounded=False)(task(), thinks("1/3=0.33")).total == 0.0


def test_a_judge_adds_its_opinion_of_each_paragraph() -> None:
    seen: list[list[str]] = []

    def judge(_: Any, steps: list[str]) -> list[float]:
        seen.append(steps)
        return [1.0, 0.5][: len(steps)]

    score = Process(judge=judge, judge_share=0.4)(task(), thinks("3+4=8\n\nso there"))
    assert seen == [["3+4=8", "so there"]]
    assert score.total == pytest.approx(0.6 * 0.0 + 0.4 * 0.75)
    assert Process(judge=judge)(task(), thinks("a\n\nb")).total == 0.75  # nothing for the rules to say
    with pytest.raises(ValueError, match=r"expected 1 scores in .* for task t, got .*nan"):
        Process(judge=lambda t, steps: [float("nan")])(task(), thinks("a"))


CALL = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (f"<tool>{CALL}</tool>", 1.0),
        (f"<tool> {CALL} </tool><tool>{CALL}</tool>", 1.0),
        ("", 1.0),
        (f"<tool>{CALL}</tool><tool>6*7</tool>", 0.5),
        (f"<tool>{CALL}", 0.0),
        (f"{CALL}</tool>", 0.0),
        (f"<tool><tool>{CALL}</tool>", 0.5),
        (f"<tool>[{CALL}]</tool>", 0.0),
        (f"<tool>{CALL} {CALL}</tool>", 0.0),
        ('<tool>{"name": 3, "arguments": {}}</tool>', 0.0),
        ('<tool>{"name": "add", "arguments": [1]}</tool>', 0.0),
        ('<tool>{"name": "add"}</tool>', 0.0),
        ('<tool>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool>', 0.0),
        ('<tool>{"name": "add", "arguments": {"a": NaN}}</tool>', 0.0),
        (f'<tool>{{"name": "add", "arguments": {{"a": {"9" * 5000}}}}}</tool>', 0.0),
        (f"<tool>{'[' * 15_000}</tool>", 0.0),
        (f"<tool>{CALL}</tool><result><tool>x</tool></result>", 1.0),  # the environment's words
    ],
)
def test_tool_calls_are_one_json_object_each(text: str, share: float) -> None:
    assert ToolCalls()(task(), says(text)) == share


def test_tools_may_be_named_with_their_arguments() -> None:
    calls = ToolCalls(tools={"add": ["a", "b"], "stop": []}, nothing=0.0)
    assert calls(task(), says("")) == 0.0
    assert calls(task(), says(f"<tool>{CALL}</tool>")) == 0.0
    for name, arguments, share in (("add", {"a": 1, "b": 2}, 1.0), ("stop", {}, 1.0), ("sub", {}, 0.0)):
        text = f"<tool>{json.dumps({'name': name, 'arguments': arguments})}</tool>"
        assert calls(task(), says(text)) == share
    assert ToolCalls(json=False)(task(), says("<tool>6*7</tool>")) == 1.0


@pytest.mark.parametrize(
    ("rollout", "count"),
    [
        (thinks("x"), 0),
        (thinks("x", finish="length"), 1),
        (thinks("x", "1</answer><answer>2"), 2),  # two tags that stand twice
        (says("42"), 4),
        (says("<think>x</think><answer>42</answer> or so"), 1),
        (thinks("<tool>1+1</tool><result>2</result>", tool_calls=1), 0),
        (thinks("<tool>1+1</tool><result></think></result>", tool_calls=1), 0),  # the environment's words
        (thinks("<tool>1+1<result>2</result>", tool_calls=0), 2),  # an open call, a made-up result
    ],
)
def test_violations_of_form_are_counted(rollout: Any, count: int) -> None:
    assert violations(rollout, ToolCalls(json=False)) == count


def test_languages_are_told_by_words_and_scripts() -> None:
    def share(thinking: str, target: str) -> float:
        return consistency(task(), thinks(thinking), target=target)

    assert share("因为 3+4=7 所以 x=7", "zh") == 1.0
    assert share("因为 the", "zh") == pytest.approx(2 / 3)
    assert share("所以 hello", "zh") == pytest.approx(2 / 3)  # no function word, but Latin
    assert share("所以 \\frac{1}{2} sin x", "zh") == 1.0  # mathematics is in no language
    assert share("then 3+4=7 потому", "en") == 0.5
    assert share("потому что", "ru") == 1.0
    assert share("これは数です", "ja") == 1.0  # Chinese characters beside kana
    assert share("これは数です", "zh") == 0.0
    assert share("그래서 the", "ko") == 0.5
    assert share("لأن the", "ar") == 0.5
    assert share("let α = 3, then β = 4", "en") == 1.0  # a Greek letter is a symbol
    assert share("el perro y la casa entonces", "es") == 1.0
    assert consistency_check({"target": "zh"}) == []
    assert "Fix: one of en, es, fr, de, zh" in consistency_check({"target": "xx"})[0]


def test_soft_overlong_falls_from_the_buffer_to_the_limit() -> None:
    lengths = (0, 80, 85, 90, 100, 120)
    values = [soft_overlong(task(), says("", tokens=range(n)), max_length=100, buffer=20) for n in lengths]
    assert values == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    own = says("", tokens=range(100), mask=[True] * 80 + [False] * 20)
    assert soft_overlong(task(), own, max_length=100, buffer=20) == 0.0  # tool results are not the policy's words
    with pytest.raises(ValueError, match="buffer must lie in"):
        soft_overlong(task(), own, max_length=100, buffer=0)


def test_cosine_prefers_short_right_and_long_wrong_answers() -> None:
    cosine = Cosine(accuracy=Accuracy(), max_length=100, right=(1.0, 0.5), wrong=(-1.0, -0.5), cut=-2.0)
    gold = task("42", "exact")
    rollouts = [thinks("x", answer, tokens=range(n)) for answer in ("42", "41") for n in (0, 50, 100, 150)]
    values = cosine.batch([(gold, rollout) for rollout in rollouts])
    assert values == pytest.approx([1.0, 0.75, 0.5, 0.5, -1.0, -0.75, -0.5, -0.5])
    assert cosine.batch([(gold, thinks("x", finish="length"))]) == [-2.0]
    [quarter] = cosine.batch([(gold, thinks("x", tokens=range(25)))])
    assert quarter == pytest.approx(0.75 + 0.25 * math.sqrt(0.5))


def test_concise_compares_lengths_within_a_task() -> None:
    gold, other = task("42", "exact"), task("42", "exact", "other")
    pairs = [
        (gold, thinks("x", a, tokens=range(n))) for a, n in (("42", 10), ("42", 30), ("41", 10), ("41", 30), ("42", 20))
    ]
    pairs.insert(2, (other, thinks("x", tokens=range(500))))
    assert Concise(accuracy=Accuracy()).batch(pairs) == pytest.approx([0.5, -0.5, 0.0, 0.0, -0.5, 0.0])


def test_length_terms_pass_a_failed_verdict_on() -> None:
    class Broken:
        def batch(self, pairs: Any) -> list[Score]:
            return [Score(0.0, {}, "failed", "why") for _ in pairs]

    for term in (Cosine(accuracy=Broken(), max_length=9), Concise(accuracy=Broken())):
        [value] = term.batch([(task(), thinks("x"))])
        assert isinstance(value, Score) and value.outcome == "failed"


def test_repeated_ngrams_cost_their_share() -> None:
    def penalty(tokens: Any, **settings: Any) -> float:
        return ngram_repetition(task(), says("", tokens=tokens), **settings)

    assert penalty(range(10), n=2) == 0.0
    assert penalty([1, 2, 1, 2, 1], n=2) == -0.5  # 12 21 12 21
    assert penalty([1] * 100, n=2) == pytest.approx(-98 / 99)
    assert penalty([1, 2, 1, 2, 1], n=2, allowed=0.25) == pytest.approx(-1 / 3)
    assert penalty([1], n=2) == 0.0
    tool = says("", tokens=[7, 8, 9, 7, 8, 9], mask=[True] * 3 + [False] * 3)
    assert ngram_repetition(task(), tool, n=2) == 0.0
    assert ngram_repetition(task(), thinks("a b a b a"), n=2, unit="words") == -0.5
    with pytest.raises(ValueError, match="n must be at least 1"):
        penalty([1], n=0)


NASTY = ["(" * 10**6, "1+" * 500_000 + "=1", "1=1+0=" * 166_000, "1 " * 500_000, "9" * 10**6, "=" * 10**6, "1,111" * 200_000,
         "<tool>" * 166_000, "</tool>" * 143_000, "<tool>{" * 143_000, "<tool></tool>" * 77_000, "<result>" * 125_000,
         "<think>" * 143_000, "因 a" * 333_000, "\\" * 10**6, "a" * 10**6, "<think>1=1+1</think>" * 50_000]  # fmt: skip
TERMS: dict[str, Callable[[Any], Any]] = {
    "process": lambda rollout: Process()(task(), rollout),
    "format": lambda rollout: think_then_answer(task(), rollout),
    "violations": lambda rollout: violations(rollout, ToolCalls()),
    "language": lambda rollout: consistency(task(), rollout, target="zh"),
    "repetition": lambda rollout: ngram_repetition(task(), rollout, unit="words"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("nasty", NASTY, ids=lambda text: text[:8])
def test_every_term_takes_linear_time_on_a_megabyte(name: str, nasty: str) -> None:
    def seconds(text: str) -> float:
        start = time.process_time()
        TERMS[name](thinks(text))
        return time.process_time() - start

    whole, tenth = seconds(nasty), seconds(nasty[: len(nasty) // 10])
    assert whole < 5.0
    assert whole < 40 * tenth + 0.1  # quadratic would be 100


@given(
    st.text(max_size=100)
    | st.lists(
        st.sampled_from(["<tool>", "</tool>", "<result>", "</result>", "{", "1+1=2", "<think>", "</answer>"])
    ).map("".join)
)
def test_no_term_fails_on_any_text(text: str) -> None:
    for rollout in (says(text), thinks(text)):
        for term in TERMS.values():
            value = term(rollout)
            assert math.isfinite(value.total if isinstance(value, Score) else value)
