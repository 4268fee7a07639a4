"""Which rollouts are picked for a person to read."""

import pyarrow as pa
import pyarrow.parquet as pq

from components.tracking.samples import Sample, choose_samples


def rollout(step, task, total, response="<think>x</think>"):
    return {
        "step": step, "task_id": task, "family": "f", "level": 1, "kind": "reasoning", "prompt": f"{task}?",
        "response": response, "tokens": [1, 2], "action_mask": [True, True], "total": total, "outcome": "scored",
        "reason": "", "length": 2, "finish": "stop", "policy_version": step, "term.accuracy": total,
    }  # fmt: skip


def test_of_every_chosen_step_there_are_the_best_and_worst_of_the_group_that_differs_most(tmp_path):
    (tmp_path / "rollouts").mkdir()
    for step in range(1, 11):
        rows = [rollout(step, "same", 1.0) for _ in range(4)] + [rollout(step, "mixed", r) for r in (0.0, 0.3, 1.0)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rollouts" / f"step-{step:06}.parquet")
    found = choose_samples(tmp_path, 9)
    assert [sample.step for sample in found] == [1, 1, 1, 5, 5, 5, 10, 10, 10]
    mixed = [sample.scores["reward"] for sample in found if sample.step == 5 and "mixed" in sample.name]
    assert mixed[:2] == [1.0, 0.0]
    assert found == choose_samples(tmp_path, 9)
    assert len({sample.name for sample in found}) == 9
    assert found[0].scores == {"reward": 1.0, "accuracy": 1.0}
    assert not choose_samples(tmp_path, 0)


def test_of_an_evaluation_there_are_right_and_wrong_answers_of_all_families(tmp_path):
    rows = [
        {
            "task_id": f"{family}{i}", "family": family, "level": 1, "kind": "reasoning", "sample": sample,
            "prompt": "?", "response": "!", "gold": "1", "answer": "2", "correct": float(family == "a" and i < 2),
            "format_ok": 1.0, "language": 1.0, "length": 3, "finish": "stop",
        }
        for family in "abc" for i in range(5) for sample in (-1, 0)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "answers.parquet")
    found = choose_samples(tmp_path, 6)
    assert [sample.scores["correct"] for sample in found] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert {sample.facts["family"] for sample in found} == {"a", "b", "c"}
    assert not any(sample.name.endswith("/-1") for sample in found)  # greedy answers stand apart
    assert not choose_samples(tmp_path / "nothing", 6)


def test_a_rollout_shows_its_calls_of_tools():
    response = "<think><tool>2*3</tool><result>6</result> so <tool>6+1</tool><result>7</result></think><tool>1</tool>"
    sample = Sample("n", 1, "p", response, {}, {})
    assert sample.tools == [("2*3", "6"), ("6+1", "7"), ("1", "")]
