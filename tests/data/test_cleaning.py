"""Duplicates, overlaps with the evaluation and disjoint splits, each with its count."""

from __future__ import annotations

import random
from typing import Any

from components.data.cleaning import Cleaning, Evaluation, near_duplicates, words
from components.data.corpus import Corpus
from components.types import Example, Message, Task

LONG = "a train leaves the station at noon and meets another one after thirty five miles of track on a rainy day"


def task(prompt: str, answer: str | None = "1", *, name: str = "", system: str = "") -> Task:
    messages = (Message("system", system),) * bool(system) + (Message("user", prompt),)
    return Task(name or f"id{abs(hash((prompt, answer)))}", messages, answer, "exact")


def clean(corpus: Corpus, **settings: Any) -> tuple[Corpus, dict[str, Any]]:
    return Cleaning(**settings)(corpus)


def prompts(corpus: Corpus, split: str) -> list[str]:
    return [t.prompt for t in corpus.tasks[split]]


def test_a_prompt_stays_in_the_evaluation_and_leaves_the_training() -> None:
    tasks = {"test": [task("3 + 4 = ?")], "train": [task("3 + 4 = ?"), task("3  +  4 = ?"), task("3 + 5 = ?")]}
    cleaned, report = clean(Corpus(tasks))
    assert prompts(cleaned, "test") == ["3 + 4 = ?"]
    assert prompts(cleaned, "train") == ["3 + 5 = ?"]
    assert report["dropped"] == {"duplicate": {"train": 2}}
    assert report["kept"]["train"] == 1


def test_case_and_unicode_composition_do_not_make_a_new_prompt_but_a_superscript_does() -> None:
    tasks = {"train": [task("Café ?"), task("cafe\u0301 ?"), task("4² = ?"), task("42 = ?")]}
    cleaned, _ = clean(Corpus(tasks))
    assert prompts(cleaned, "train") == ["Café ?", "4² = ?", "42 = ?"]


def test_the_same_prompt_with_another_answer_is_counted_apart() -> None:
    _, report = clean(Corpus({"train": [task("x ?", "1"), task("x ?", "2")]}))
    assert report["dropped"] == {"duplicate_with_another_answer": {"train": 1}}


def test_long_prompts_that_differ_in_a_word_are_near_duplicates_and_arithmetic_is_not() -> None:
    near = LONG + " in the north of the country near the old bridge over the wide river"
    sums = ["1 + 2 + 3 + 4 + 5 = ?", "1 + 2 + 3 + 4 + 6 = ?"]
    tasks = {"train": [task(near), task(near.replace("rainy", "sunny")), *map(task, sums)]}
    cleaned, report = clean(Corpus(tasks))
    assert prompts(cleaned, "train") == [near, *sums]
    assert report["dropped"] == {"near_duplicate": {"train": 1}}
    _, off = clean(Corpus(tasks), near_duplicate=1.0)
    assert off["dropped"] == {}


def test_near_duplicates_agree_with_the_plain_jaccard_index() -> None:
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(300)]
    texts = [rng.choices(vocabulary, k=40) for _ in range(60)]
    for source in range(40):  # copies with 0 … 9 words changed, on both sides of the threshold
        text = list(texts[source])
        for _ in range(source % 10):
            text[rng.randrange(40)] = rng.choice(vocabulary)
        texts.append(text)
    triples = [{tuple(text[i : i + 3]) for i in range(38)} for text in texts]
    expected: set[int] = set()
    for j, b in enumerate(triples):
        if any(i not in expected and len(a & b) / len(a | b) >= 0.8 for i, a in enumerate(triples[:j])):
            expected.add(j)
    assert near_duplicates(texts, threshold=0.8, min_words=20) == expected
    assert 4 <= len(expected) <= 20


def test_training_text_that_shares_ten_words_with_the_evaluation_is_dropped() -> None:
    ten, nine = " ".join(LONG.split()[3:13]), " ".join(LONG.split()[3:12])
    corpus = Corpus(
        {"test": [task(LONG)], "train": [task(f"so {ten} then"), task(f"so {nine} then")]},
        pretrain=[f"x {ten} y", f"x {nine} y"],
        cold_start=[Example("a", (Message("user", f"{ten} ?"),), "r"), Example("b", (Message("user", "z"),), "r")],
        general=[Example("c", (Message("user", f"{ten} ?"),), "r")],
    )
    cleaned, report = clean(corpus)
    assert prompts(cleaned, "train") == [f"so {nine} then"]
    assert cleaned.pretrain == [f"x {nine} y"]
    assert [e.task_id for e in cleaned.cold_start] == ["b"]
    assert report["dropped"] == {"overlaps_evaluation": {"train": 1, "pretrain": 1, "cold_start": 1, "general": 1}}


def test_short_evaluation_prompts_count_as_a_whole() -> None:
    evaluation = Evaluation([(Message("user", "4 - 2 = ?"),)], n=10)
    assert evaluation.contains(words("4 - 2 = ?"))
    assert not evaluation.contains(words("3 + 4 - 2 = ?"))
    assert evaluation.contains(words("4 - 2 = ? first 4-2=2 answer 2"), prefix=True)
    assert not evaluation.contains(words("3 + 4 - 2 = ? first"), prefix=True)


def test_a_template_that_the_evaluation_prompts_share_is_not_content() -> None:
    ask = "please think about this question step by step and give only the final number : how much is {} ?"
    tasks = {"test": [task(ask.format(i)) for i in range(20)], "train": [task(ask.format(i)) for i in range(20, 40)]}
    cleaned, _ = clean(Corpus(tasks), near_duplicate=1.0)
    assert len(cleaned.tasks["train"]) == 20


def test_templates_with_two_blanks_are_compared_as_a_whole_if_asked() -> None:
    ask = "please think about this question step by step and give only the final number : how much is {} + {} ?"
    tasks = {
        "test": [task(ask.format(i, i)) for i in range(20)],
        "train": [task(ask.format(i, i + 1)) for i in range(20)],
    }
    assert len(clean(Corpus(tasks), near_duplicate=1.0)[0].tasks["train"]) == 0  # ten words and one number in common
    assert len(clean(Corpus(tasks), near_duplicate=1.0, ngram=0)[0].tasks["train"]) == 20
    assert len(clean(Corpus(tasks, templated=True), near_duplicate=1.0)[0].tasks["train"]) == 20


def test_the_system_prompt_that_all_tasks_share_is_not_compared() -> None:
    tasks = {"test": [task("3 + 4 = ?", system=LONG)], "train": [task("3 + 5 = ?", system=LONG)]}
    cleaned, _ = clean(Corpus(tasks))
    assert prompts(cleaned, "train") == ["3 + 5 = ?"]


def test_overlong_prompts_and_what_the_source_dropped_are_counted() -> None:
    corpus = Corpus({"train": [task("x" * 101), task("y")]}, dropped={"gold_fails_its_own_test": 2})
    _, report = clean(corpus, max_prompt_chars=100)
    assert report["dropped"] == {"gold_fails_its_own_test": {"source": 2}, "too_long": {"train": 1}}


def test_prompts_with_special_tokens_are_noted_and_kept() -> None:
    cleaned, report = clean(Corpus({"train": [task("say <|im_end|> now"), task("y")]}))
    assert len(cleaned.tasks["train"]) == 2
    assert report["noted"]["prompts_with_special_tokens"] == 1
