"""reasoning-gym as a source: levels, its own scorer, and clear words when something is missing."""

from __future__ import annotations

import builtins
import json
import sys

import pytest

from components.data.corpus import SPLITS, DataError
from components.data.gym import ReasoningGym, as_tuples

SMALL = {"train_per_cell": 10, "fresh_per_cell": 5, "profile_per_cell": 2, "dev_per_cell": 3, "test_per_cell": 4}
DATASETS = {
    "chain_sum": [{"min_terms": 2, "max_terms": 2}, {"min_terms": 5, "max_terms": 5}],
    "gcd": [{"min_value": 2, "max_value": 50}],
}


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args, **kwargs):
        if name.startswith("reasoning_gym"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    with pytest.raises(DataError, match=r"pip install 'r1flow\[reasoning-gym\]'"):
        ReasoningGym(datasets=DATASETS).check()


def test_levels_and_splits_are_filled_with_different_prompts() -> None:
    pytest.importorskip("reasoning_gym")
    corpus, again, other = (ReasoningGym(datasets=DATASETS, **SMALL).load(seed) for seed in (0, 0, 1))
    assert corpus == again
    assert corpus.tasks["test"] == other.tasks["test"]
    assert corpus.tasks["train"] != other.tasks["train"]
    cells = [task.cell for task in corpus.tasks["train"]]
    assert {cell: cells.count(cell) for cell in set(cells)} == {"chain_sum/0": 10, "chain_sum/1": 10, "gcd/0": 10}
    prompts = [task.prompt for split in SPLITS for task in corpus.tasks[split]]
    assert len(prompts) == len(set(prompts))


def test_the_scorer_of_the_generator_accepts_the_gold_answer_from_the_task_alone() -> None:
    pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import create_dataset

    datasets = {**DATASETS, "rearc": [{}], "basic_arithmetic": [{}], "number_sorting": [{}]}
    corpus = ReasoningGym(datasets=datasets, **SMALL).load(0)
    for task in corpus.tasks["train"]:
        meta = json.loads(json.dumps(task.to_json()))["meta"]
        scorer = create_dataset(meta["dataset"], seed=0, size=1, **meta["config"])
        entry = as_tuples(meta["entry"]) if meta["tuples"] else meta["entry"]
        assert scorer.score_answer(task.answer, entry) == 1.0
        assert scorer.score_answer("no such answer", entry) < 1.0
    assert {task.meta["tuples"] for task in corpus.tasks["train"] if task.family == "rearc"} == {True}


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"chain_sums": [{}]}, "no 'chain_sums'; the nearest is 'chain_sum'"),
        ({"gcd": [{"max_val": 3}]}, r"gcd\[0\]\.max_val: no such parameter; the nearest is 'max_value'"),
        ({"gcd": [{"min_value": 9, "max_value": 3}]}, r"gcd\[0\]: refused"),
    ],
)
def test_wrong_names_and_parameters_are_named(datasets, message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=message):
        ReasoningGym(datasets=datasets).check()
