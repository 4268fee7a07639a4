"""Mixtures: shares, caps, ids, and whose rule judges what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from components.data.corpus import SPLITS, Corpus, DataError
from components.data.mix import Mixture, Part
from components.types import Example, Message, Task


class Source:
    """So many tasks per split, a trace for each training task."""

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name, self.sizes = name, sizes

    def fingerprint(self) -> str:
        return f"{self.name}{dict(self.sizes)}"

    def load(self, seed: int) -> Corpus:
        tasks = {split: [self.task(split, n) for n in range(size)] for split, size in self.sizes.items()}
        examples = [Example(t.id, t.messages, f"<think>{seed}</think>", self.name) for t in tasks.get("train", [])]
        return Corpus(tasks, cold_start=examples, notes=[f"seed {seed}"], dropped={"bad": 2})

    def task(self, split: str, n: int) -> Task:
        prompt = f"{self.name} {split} {n}"
        return Task(f"{split}-{n}", (Message("user", prompt),), "1", "exact", self.name)


def mixed(**parts: Any) -> Corpus:
    return Mixture(parts=parts).load(3)


BIG = Source("big", {"train": 400, "fresh": 100, "profile": 20, "dev": 10, "test": 50})
SMALL = Source("small", {"train": 60, "test": 30})


def count(corpus: Corpus, split: str, family: str) -> int:
    return sum(task.family == family for task in corpus.tasks[split])


def test_without_weights_everything_is_there_and_ids_are_apart() -> None:
    corpus = mixed(a=Part(source=BIG), b=Part(source=SMALL))
    for split in SPLITS:
        assert len(corpus.tasks[split]) == BIG.sizes.get(split, 0) + SMALL.sizes.get(split, 0)
    ids = [task.id for split in SPLITS for task in corpus.tasks[split]]
    assert len(ids) == len(set(ids))
    assert {t.id for t in corpus.tasks["train"]} >= {"train-0", "b.train-0"}
    assert {e.task_id for e in corpus.cold_start} == {t.id for t in corpus.tasks["train"]}
    assert corpus.dropped == {"bad": 4}
    assert corpus.notes == ["a: seed 3", "b: seed 3", "mixed to train on: a 400, b 60"]


def test_weights_are_shares_of_what_is_trained_on_and_nothing_is_repeated() -> None:
    corpus = mixed(a=Part(source=BIG, weight=2), b=Part(source=SMALL, weight=1))
    assert (count(corpus, "train", "big"), count(corpus, "train", "small")) == (120, 60)
    assert count(corpus, "fresh", "big") == 30  # in proportion
    assert count(corpus, "profile", "big") == 20  # what measures is not cut
    assert count(corpus, "test", "big") == 50
    assert len({task.prompt for task in corpus.tasks["train"]}) == 180
    assert sum(e.source == "big" for e in corpus.cold_start) == 120


def test_a_part_without_a_weight_takes_no_part_in_the_shares() -> None:
    corpus = mixed(a=Part(source=BIG, weight=1), b=Part(source=SMALL))
    assert (count(corpus, "train", "big"), count(corpus, "train", "small")) == (400, 60)


def test_caps_hold_before_shares() -> None:
    corpus = mixed(a=Part(source=BIG, weight=1, cap=30, cap_test=7), b=Part(source=SMALL, weight=1))
    assert (count(corpus, "train", "big"), count(corpus, "train", "small")) == (30, 30)
    assert (count(corpus, "test", "big"), count(corpus, "dev", "big"), count(corpus, "test", "small")) == (7, 7, 30)


def test_what_is_kept_does_not_depend_on_the_other_parts() -> None:
    alone = {t.prompt for t in mixed(a=Part(source=BIG, cap=60)).tasks["train"]}
    beside = {t.prompt for t in mixed(b=Part(source=SMALL), a=Part(source=BIG, cap=60)).tasks["train"]}
    assert alone == {prompt for prompt in beside if prompt.startswith("big")}


def test_each_part_may_have_its_own_rule_and_reward() -> None:
    corpus = mixed(a=Part(source=BIG, verifier="math", kind="maths"), b=Part(source=SMALL, family="other"))
    found = {(t.family, t.verifier, t.kind) for split in SPLITS for t in corpus.tasks[split]}
    assert found == {("big", "math", "maths"), ("other", "exact", "reasoning")}


def test_the_fingerprint_changes_with_any_part() -> None:
    one = Mixture(parts={"a": Part(source=BIG), "b": Part(source=SMALL)}).fingerprint()
    other = Source("small", {"train": 61, "test": 30})
    assert Mixture(parts={"a": Part(source=BIG), "b": Part(source=other)}).fingerprint() != one
    assert Mixture(parts={"a": Part(source=BIG), "b": Part(source=SMALL)}).fingerprint() == one


def test_what_is_wrong_names_the_part() -> None:
    class Bad:
        def check(self) -> None:
            raise DataError("q.jsonl:3 answer: missing. Fix: give it")

    with pytest.raises(DataError, match=r"parts\.b: q\.jsonl:3 answer: missing"):
        Mixture(parts={"a": Part(source=BIG), "b": Part(source=Bad())}).check()  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"parts\.a\.weight: must be positive \(got 0\)"):
        Mixture(parts={"a": Part(source=BIG, weight=0)})
    with pytest.raises(DataError, match="'a b' is not a name"):
        Mixture(parts={"a b": Part(source=BIG)})
