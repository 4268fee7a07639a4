"""A verifier is tried on references before it is believed."""

from __future__ import annotations

from components.rewards.accuracy import Accuracy
from components.rewards.trial import agreement
from components.types import Message, Score, Task


def tasks(n: int = 30, **more) -> list[Task]:
    return [
        Task(f"t{i}", (Message("user", f"{i} + 1 ="),), **{"answer": str(i + 1), "verifier": "exact", **more})
        for i in range(n)
    ]


def test_the_built_in_verifier_agrees_with_the_references():
    found = agreement(Accuracy(), tasks())
    assert (found["n"], found["right"], found["wrong"], found["failed"]) == (30, 1.0, 1.0, 0.0)
    assert found["examples"] == []


def test_an_answer_in_a_box_counts_where_the_verifier_reads_boxes():
    found = agreement(Accuracy(strict=False, accept=("boxed",)), tasks())
    assert (found["right"], found["wrong"]) == (1.0, 1.0)


def test_a_verifier_that_pays_for_anything_is_caught():
    found = agreement(lambda task, rollout: 1.0, tasks())
    assert (found["right"], found["wrong"]) == (1.0, 0.0)
    assert len(found["examples"]) == 3
    assert "is called right where the reference is" in found["examples"][0]


def test_a_verifier_that_knows_no_reference_is_caught():
    found = agreement(lambda task, rollout: 0.0, tasks())
    assert (found["right"], found["wrong"]) == (0.0, 1.0)
    assert "is called wrong" in found["examples"][0]


def test_one_that_raises_or_fails_is_counted_and_stops_nothing():
    def raises(task, rollout):
        raise RuntimeError("no")

    assert agreement(raises, tasks())["failed"] == 1.0
    assert agreement(raises, tasks())["right"] is None
    failing = agreement(lambda task, rollout: Score(0.0, {}, "failed", "no"), tasks())
    assert (failing["failed"], failing["right"]) == (1.0, None)


def test_no_more_than_the_limit_are_tried_and_the_same_ones_each_time():
    seen: list[str] = []
    agreement(lambda task, rollout: seen.append(task.id) or 1.0, tasks(100), limit=5, seed=3)
    again: list[str] = []
    agreement(lambda task, rollout: again.append(task.id) or 1.0, tasks(100), limit=5, seed=3)
    assert len(set(seen)) == 5
    assert seen == again


def test_tasks_without_a_reference_cannot_be_tried():
    found = agreement(Accuracy(), tasks(answer=None))
    assert (found["n"], found["right"], found["wrong"]) == (0, None, None)


def test_where_all_answers_are_alike_there_is_no_wrong_one_to_try():
    assert agreement(Accuracy(), tasks(answer="7"))["wrong"] is None
