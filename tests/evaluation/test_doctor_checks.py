"""What the checks rest on, and the findings that no tiny policy can provoke, on rollouts of the real form."""

from __future__ import annotations

import random
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doctor_rows import metrics, rollouts

from components.artifacts import write_json, write_jsonl
from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.groups import digest
from components.evaluation.doctor.read import Rollouts, StageFiles, by_step, examine_run, single_valued
from components.evaluation.doctor.record import Record
from components.evaluation.doctor.text import alternatives, marks, touches_tests
from components.evaluation.doctor.trends import change, stretches
from components.evaluation.doctor.watch import Watch, examine

PLAIN = "<think>so</think><answer>4</answer>"
HONEST = "<think>so</think><answer>def f(x):\n    return x + 1\n</answer>"
FORGED = "<think>so</think><answer>import os\ndef f(x):\n    os._exit(0)\n</answer>"


def found(parts: list[list[dict[str, Any]]], machine: dict[str, Any] | None = None, **more: Any) -> list[Finding]:
    return examine(Record("rl", machine=machine or {}), metrics(parts, **more), parts, single=lambda task: True)


def learning(rng: random.Random, progress: float) -> tuple[str, float, dict[str, float]]:
    """A healthy policy: right ever more often, different responses."""
    return (
        f"<think>{rng.random()}</think><answer>4</answer>",
        float(rng.random() < 0.3 + 0.5 * progress),
        {"format": 0.1},
    )


def test_a_healthy_stage_has_no_findings() -> None:
    for seed in range(5):
        assert found(rollouts(learning, seed=seed)) == []


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ("42", 1),
        ("41 or 42", 2),
        ("41 | 42 | 43", 3),
        ("41; 42", 2),
        ("41, 42", 2),
        ("a saw or a knife", 1),
        ("3/4", 1),
        ("", 0),
    ],
)
def test_alternatives_are_counted(answer: str, values: int) -> None:
    assert alternatives(answer, commas=True) == values


def test_a_list_with_commas_counts_only_where_one_value_was_asked_for() -> None:
    assert alternatives("41, 42", commas=False) == 1


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (PLAIN, {"answered"}),
        ("so</think><answer>4</answer>", {"answered", "no_open"}),
        ("<think><think>so</think><answer>4</answer>", {"answered", "double_open"}),
        ("<think>so</think><answer>4</answer><answer>5</answer>", {"answered", "stuffed"}),
        ("<think>\\boxed{3} \\boxed{4}</think>\\boxed{4}", {"answered"}),
        ("<think>so</think>\\boxed{4} or \\boxed{5}", {"answered", "stuffed"}),
        ("<think>so</think><answer>4 or 5</answer>", {"answered", "stuffed"}),
        ("<think>so", set()),
    ],
)
def test_marks_of_a_response(response: str, expected: set[str]) -> None:
    assert marks(response, "stop", single=False) == expected


@pytest.mark.parametrize(
    ("program", "touches"),
    [
        (HONEST, False),
        (FORGED, True),
        ("def f():\n    return open('/work/tests/test_f.py').read()", True),
        ("def f(p):\n    return open(p).read()  # no test", False),
        ("import sys\nclass A:\n    def __eq__(self, other): return True", True),
        ("class A:\n    def __eq__(self, other):\n        return self.x == other.x\ndef f(): ...", False),
        ("to open( a test tube, use os._exit", False),
    ],
)
def test_programs_that_reach_for_their_tests_are_told_from_others(program: str, touches: bool) -> None:
    assert touches_tests(program) is touches


@pytest.mark.parametrize("unit", ["<think>", "</think><answer>", "\\boxed{", "open(", "def open(test", " or 1", "1, "])
def test_marking_a_megabyte_takes_linear_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    began = time.process_time()
    marks(text, "stop", single=True)
    assert time.process_time() - began < 5  # quadratic would take minutes


# --- trends ----------------------------------------------------------------------------------------------------------


def test_a_change_is_measured_at_equal_difficulty() -> None:
    """The curriculum goes from level 0 to 1 while the policy gets better at both: the plain mean falls, .71 to .49."""
    plan = [(1, 0, 0.8)] * 18 + [(1, 1, 0.2)] * 3 + [(9, 0, 1.0)] * 3 + [(9, 1, 0.4)] * 18
    rows = [
        {**rollouts(learning, steps=1, prompts=1, group=1)[0][0], "step": step, "task_id": f"{i}", "level": level}
        | {"term.accuracy": right}
        for i, (step, level, right) in enumerate(plan)
    ]
    views = digest(rows)
    early, late = [v for v in views if v.step == 1], [v for v in views if v.step == 9]
    measured = change(early, late, lambda view: view.truth)
    assert measured is not None and measured.effect == pytest.approx(0.2) and measured.error == pytest.approx(0)


def test_steps_are_compared_only_while_the_reward_has_the_same_terms() -> None:
    def late_term(rng: random.Random, progress: float) -> tuple[str, float, dict[str, float]]:
        return PLAIN, float(rng.random() < 0.5), {"preference": 5.0} if progress >= 0.5 else {}

    parts = rollouts(late_term, steps=40)
    assert [(s.early[0].step, s.step) for s in stretches(digest(chain(*parts)))] == [(1, 20), (21, 40)]
    assert found(parts) == []


def test_a_step_that_is_done_again_replaces_what_it_left() -> None:
    parts = rollouts(learning, steps=8)
    watch = Watch(Record("rl"))
    for rows, row in zip(parts, metrics(parts), strict=True):
        watch.log(row)
        watch.sampled(rows)
    watch.log({"step": 6, "reward": 0.0})
    watch.sampled(parts[5])
    assert [row["step"] for row in watch.record.steps] == [1, 2, 3, 4, 5, 6]
    assert {view.step for view in watch.record.groups} == {1, 2, 3, 4, 5, 6}
    assert len(watch.record.groups) == 48


# --- findings --------------------------------------------------------------------------------------------------------


def test_programs_that_touch_their_tests_are_named_once_they_spread_and_pay() -> None:
    def hacking(rng: random.Random, progress: float) -> tuple[str, float, dict[str, float]]:
        forged = rng.random() < 0.02 + 0.6 * progress
        return FORGED if forged else HONEST, float(forged or rng.random() < 0.3), {}

    finding = next(f for f in found(rollouts(hacking)) if f.name == "programs_touch_tests")
    assert 12 <= finding.step <= 30 and finding.figures["worth"] > 0.4
    assert all("os._exit" in sample.response for sample in finding.samples) and finding.samples


def test_programs_that_touch_their_tests_as_ever_or_in_vain_are_no_finding() -> None:
    def constant(rng: random.Random, progress: float) -> tuple[str, float, dict[str, float]]:
        forged = rng.random() < 0.3
        return FORGED if forged else HONEST, float(rng.random() < 0.5), {}

    def in_vain(rng: random.Random, progress: float) -> tuple[str, float, dict[str, float]]:
        forged = rng.random() < 0.6 * progress
        return FORGED if forged else HONEST, float(not forged and rng.random() < 0.5), {}

    for policy in (constant, in_vain):
        assert "programs_touch_tests" not in {f.name for f in found(rollouts(policy))}


@pytest.mark.parametrize(("response", "name"), [("so</think><answer>4</answer>", "lost"), ("<think>" + PLAIN, "again")])
def test_a_prefilled_thought_that_is_lost_or_opened_again_is_named(response: str, name: str) -> None:
    finding = found(rollouts(lambda rng, progress: (response, float(rng.random() < 0.5), {}), steps=6))[0]
    assert finding.name == "template" and finding.step == 5 and name in finding.remedy


def test_length_that_grows_because_right_answers_need_it_is_no_finding() -> None:
    def thorough(rng: random.Random, progress: float) -> tuple[str, float, dict[str, float]]:
        words = rng.randint(5, 10 + round(40 * progress))
        right = float(rng.random() < min(0.9, words / 40))
        return f"<think>{'so ' * words}{rng.random()}</think><answer>4</answer>", right, {}

    assert found(rollouts(thorough)) == []


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ({"processes": 2, "threads": 8, "cores": 2}, "2 processes of 8 threads share 2 cores"),
        ({"processes": 1, "threads": 1, "cores": 8, "workers": [{"cpu_s": 60, "wall_s": 10}]}, "kept 6.0 cores busy"),
    ],
)
def test_threads_that_fight_for_cores_are_named(machine: dict[str, Any], said: str) -> None:
    findings = found(rollouts(learning, steps=3), machine)
    assert [f.name for f in findings] == ["wrong_threads"] and said in findings[0].evidence


@pytest.mark.parametrize(
    "machine",
    [
        {"processes": 2, "threads": 1, "cores": 2, "workers": [{"cpu_s": 46, "wall_s": 68}] * 2},
        {"processes": 2, "threads": 1, "cores": 1},
        {"processes": 2, "threads": 1, "workers": []},
    ],
)
def test_the_default_processes_are_no_finding(machine: dict[str, Any]) -> None:
    assert found(rollouts(learning, steps=3), machine) == []


def test_a_mismatch_that_is_corrected_for_may_be_ten_times_as_large() -> None:
    parts = rollouts(learning, steps=6)
    settings = {"algorithm": {"mismatch": {"_target_": "components.losses.mismatch.tis"}}}
    rows = metrics(parts, gap=0.2, gap_kl=0.03, gap_max=2.0)
    assert [f.name for f in examine(Record("rl"), rows, parts)] == ["logprob_mismatch"]
    assert examine(Record("rl", settings), rows, parts) == []


def test_figures_that_are_not_finite_are_named_in_any_stage() -> None:
    rows = [{"step": 20 * i, "loss": 1.0 / i if i < 3 else float("nan")} for i in range(1, 5)]
    findings = examine(Record("sft_2"), rows)
    assert [(f.name, f.severity) for f in findings] == [("bad_updates", "warning")]
    assert "loss is not finite at step 60" in findings[0].evidence


# --- files -----------------------------------------------------------------------------------------------------------


def write_run(root: Path, held_out: float) -> list[StageFiles]:
    """A stage whose training reward rises with its accuracy, and evaluations before (50 %) and after it."""
    parts = rollouts(learning, steps=30)
    for rows in parts:
        path = root / "rl" / "rollouts" / f"step-{rows[0]['step']:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([{**row, "tokens": [1]} for row in rows]), path)
    write_jsonl(root / "rl" / "logs" / "metrics.jsonl", metrics(parts))
    for name, rate in (("eval_sft", 0.5), ("eval_rl", held_out)):
        answers = [
            {"task_id": f"e{i}", "kind": "reasoning", "sample": s, "prompt": "?", "response": PLAIN}
            | {"correct": float((i * 7 + s * 3) % 10 < 10 * rate)}
            for i in range(200)
            for s in (-1, 0, 1)
        ]
        (root / name).mkdir()
        pq.write_table(pa.Table.from_pylist(answers), root / name / "answers.parquet")
    return [
        StageFiles("rl", root / "rl", {"model": "sft"}),
        StageFiles("eval_sft", root / "eval_sft", {"model": "sft"}),
        StageFiles("eval_rl", root / "eval_rl", {"model": "rl"}),
    ]


def test_a_reward_that_rises_without_held_out_accuracy_is_named(tmp_path: Path) -> None:
    findings = examine_run(write_run(tmp_path, held_out=0.5))
    assert [f.name for f in findings] == ["reward_without_held_out_accuracy"]
    assert "200 held-out prompts +0.0 points" in findings[0].evidence and findings[0].samples
    assert Finding.from_json(findings[0].to_json()) == findings[0]


def test_a_reward_that_rises_with_held_out_accuracy_is_no_finding(tmp_path: Path) -> None:
    assert examine_run(write_run(tmp_path, held_out=0.7)) == []


def test_rollouts_that_were_read_already_give_the_same_findings(tmp_path: Path) -> None:
    stages = write_run(tmp_path, held_out=0.5)
    rows = [row for part in Rollouts(tmp_path / "rl" / "rollouts").new() for row in part]
    assert examine_run(stages, {"rl": by_step(rows)}) == examine_run(stages)


def test_a_file_that_is_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    write_run(tmp_path, held_out=0.7)
    last = tmp_path / "rl" / "rollouts" / "step-000030.parquet"
    whole = last.read_bytes()
    last.write_bytes(whole[:100])
    reader = Rollouts(tmp_path / "rl" / "rollouts")
    assert [rows[0]["step"] for rows in reader.new()] == list(range(1, 30))
    last.write_bytes(whole)
    assert [rows[0]["step"] for rows in reader.new()] == [30]
    assert list(reader.new()) == []


def test_a_damaged_file_in_the_middle_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, held_out=0.7)
    (tmp_path / "rl" / "rollouts" / "step-000007.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"step-000007\.parquet|Parquet"):
        list(Rollouts(tmp_path / "rl" / "rollouts").new())


def test_gold_answers_say_where_one_value_is_asked_for(tmp_path: Path) -> None:
    tasks = [{"id": "a", "answer": "42"}, {"id": "b", "answer": "1, 2, 3"}, {"id": "c", "answer": None}]
    write_jsonl(tmp_path / "train.jsonl", tasks)
    single = single_valued(tmp_path / "train.jsonl")
    assert [single(task) for task in "abcd"] == [True, False, False, False]
    assert not single_valued(tmp_path / "absent.jsonl")("a")


def test_the_manifest_has_the_settings_that_remedies_name(tmp_path: Path) -> None:
    cut = [[{**row, "finish": "length"} for row in rows] for rows in rollouts(learning, steps=6)]
    write_jsonl(tmp_path / "logs" / "metrics.jsonl", metrics(cut))
    write_json(tmp_path / "manifest.json", {"spec": {"settings": {"max_new_tokens": 77}}})
    finding = examine_run([StageFiles("rl_1", tmp_path)])[0]
    assert finding.name == "truncation" and "cut off at 77 tokens" in finding.evidence
