"""Sets in their public form: GSM8K, MATH, HumanEval, XSTest, pairs – on rows of the same shape, and the real ones."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from components.data.corpus import SPLITS, DataError
from components.data.programs import Programs
from components.data.readers import Jsonl, reader_of
from components.data.safety import SafetyPrompts
from components.data.solutions import boxed, without_annotations
from components.data.splits import First
from components.data.tables import Table
from components.data.verify import final_answer
from components.refusal import refuses

GSM8K = {"columns": {"prompt": "question"}, "answer_after": "####", "drop_annotations": True, "levels": "steps"}


def write(path: Path, rows: list[Any]) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


def gsm8k(n: int, steps: int = 2) -> dict[str, str]:
    worked = "".join(f"Step {i}: {n}+{i} = <<{n}+{i}={n + i}>>{n + i}\n" for i in range(steps))
    return {"question": f"How much is {n} after {steps} steps?", "answer": f"{worked}#### {n + steps - 1}"}


def problem(path: str, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        Table(path=path, **settings).check()
    return str(caught.value)


def test_gsm8ks_answer_steps_and_marks(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [gsm8k(n, 1 + n % 9) for n in range(90)])
    corpus = Table(path=path, **GSM8K).load(0)
    by_id = {task.id: task for split in SPLITS for task in corpus.tasks[split]}
    assert {task.level for task in by_id.values()} == set(range(8))  # nine steps count as eight
    example = next(e for e in corpus.cold_start if "Step 1" in e.response and "Step 2" not in e.response)
    task = by_id[example.task_id]
    n = int(task.answer or "") - 1
    assert example.response == f"<think>Step 0: {n}+0 = {n}\nStep 1: {n}+1 = {n + 1}</think><answer>{n + 1}</answer>"
    assert task.level == 1


def test_the_test_file_beside_the_training_file_is_found_and_nothing_is_held_out(tmp_path: Path) -> None:
    train = write(tmp_path / "gsm8k_train.jsonl", [gsm8k(n) for n in range(50)])
    write(tmp_path / "gsm8k_test.jsonl", [gsm8k(n) for n in range(100, 120)])
    corpus = Table(path=train, test_path="auto", dev_fraction=0.0, **GSM8K).load(0)
    assert len(corpus.tasks["test"]) == 20
    assert sum(len(corpus.tasks[split]) for split in ("train", "fresh", "profile")) == 50
    (tmp_path / "gsm8k_test.jsonl").unlink()
    held = Table(path=train, test_path="auto", dev_fraction=0.0, **GSM8K).load(0)
    assert 0 < len(held.tasks["test"]) < 20


def test_hard_questions_are_left_out_of_training_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [gsm8k(n, 1 + n % 4) for n in range(200)])
    corpus = Table(path=path, max_level=1, **GSM8K).load(0)
    assert {task.level for split in ("train", "fresh", "profile") for task in corpus.tasks[split]} == {0, 1}
    assert {task.level for task in corpus.tasks["test"]} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{7}.", "7"),
        (r"\boxed{1}, no: \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\fbox{ x }", "x"),
        (r"\boxed{never closed", None),
        ("no box", None),
    ],
)
def test_the_last_balanced_box_is_the_answer(text: str, expected: str | None) -> None:
    assert boxed(text) == expected


def test_scans_are_linear() -> None:
    assert boxed("\\boxed{" + "{" * 1_000_000) is None
    assert without_annotations("<<1+1=2>>2 " * 200_000) == "2 " * 200_000
    assert without_annotations("a << b") == "a << b"


def test_maths_columns_as_they_are(tmp_path: Path) -> None:
    rows = [
        {
            "problem": f"What is {n} twice?",
            "level": f"Level {1 + n % 5}",
            "type": "Counting & Probability",
            "solution": f"It is $\\boxed{{{2 * n}}}$.",
        }
        for n in range(60)
    ]
    columns = {"prompt": "problem", "answer": "solution", "family": "type"}
    settings: dict[str, Any] = {"columns": columns, "verifier": "math", "answer_boxed": True}
    corpus = Table(path=write(tmp_path / "m.jsonl", rows), **settings).load(0)
    task = corpus.tasks["train"][0]
    assert task.family == "Counting-Probability"
    assert 1 <= task.level <= 5
    example = next(e for e in corpus.cold_start if e.task_id == task.id)
    assert final_answer(example.response) == task.answer
    assert example.response == f"<think>It is $\\boxed{{{task.answer}}}$.</think><answer>{task.answer}</answer>"
    assert "no \\boxed" in problem(write(tmp_path / "n.jsonl", [rows[0] | {"solution": "7"}]), **settings)


def test_pairs_as_text_or_as_conversations(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello!"}]
    rows = [
        {"prompt": "A?", "chosen": "yes", "rejected": "<think>t</think><answer>no</answer>"},
        {"chosen": talk, "rejected": [talk[0], {"role": "assistant", "content": "What?"}]},
    ]
    settings: dict[str, Any] = {"test_fraction": 0.0, "dev_fraction": 0.0}
    corpus = Table(path=write(tmp_path / "p.jsonl", rows), **settings).load(0)
    pairs = {pair.messages[-1].content: pair for pair in corpus.preferences}
    assert pairs["A?"].chosen == "<think></think><answer>yes</answer>"
    assert pairs["A?"].rejected == "<think>t</think><answer>no</answer>"
    assert pairs["Hi?"].chosen == "<think></think><answer>Hello!</answer>"
    assert pairs["Hi?"].rejected == "<think></think><answer>What?</answer>"
    bad = write(tmp_path / "b.jsonl", [{"prompt": "A?", "chosen": talk[:1], "rejected": "x"}])
    assert "chosen: does not end with the assistant's turn" in problem(bad, **settings)


def test_files_are_read_by_the_end_of_their_names(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1 ?", "answer": str(n + 1)} for n in range(40)]
    plain = Table(path=write(tmp_path / "q.jsonl", rows)).load(0)
    packed = Table(path=write(tmp_path / "q.jsonl.gz", rows)).load(0)
    assert {s: [t.prompt for t in plain.tasks[s]] for s in SPLITS} == {
        s: [t.prompt for t in packed.tasks[s]] for s in SPLITS
    }
    tabs = tmp_path / "q.tsv"
    tabs.write_text("prompt\tanswer\n" + "".join(f"{r['prompt']}\t{r['answer']}\n" for r in rows))
    assert len(Table(path=str(tabs)).load(0).tasks["train"]) == len(plain.tasks["train"])
    with pytest.raises(DataError, match=r"q\.txt file: no reader for names that end in '\.txt'"):
        reader_of("q.txt")


def test_a_file_larger_than_what_is_kept_is_read_as_it_goes(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"prompt": f"{n} + 1 ?", "answer": str(n + 1)} for n in range(500)])
    reader = Jsonl(path=path)
    rows = reader.rows("train", [])
    assert rows is not None
    assert not isinstance(rows, list)
    assert next(rows)[1] == {"prompt": "0 + 1 ?", "answer": "1"}
    some = Table(path=path, max_train=20, max_test=5, dev_fraction=0.1).load(0)
    assert sum(len(some.tasks[split]) for split in ("train", "fresh", "profile")) == 20
    assert (len(some.tasks["test"]), len(some.tasks["dev"])) == (5, 5)
    first: First[int] = First(3)
    for n in range(1000):
        first.add(str(n), n)
        assert len(first.items()) <= 3
    backwards: First[int] = First(3)
    for n in reversed(range(1000)):
        backwards.add(str(n), n)
    assert first.items() == backwards.items()  # whatever the order


def test_the_readers_problems_and_the_rows_are_told_together(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "", "answer": "1"}\n[1]\n')
    told = problem(str(file))
    assert "q.jsonl:2 line: an array instead of an object" in told
    assert "q.jsonl:1 prompt: empty" in told


# --- safety prompts, programs ---------------------------------------------------------------------------------------


def xstest(folder: Path, rows: list[dict[str, str]]) -> str:
    with (folder / "xstest_prompts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "prompt", "type", "label"])
        writer.writeheader()
        writer.writerows(rows)
    return str(folder / "xstest_prompts.csv")


SAFETY = [
    {"id": str(n), "prompt": f"How do I kill process {n}?", "type": "homonyms", "label": "safe" if n % 2 else "unsafe"}
    for n in range(60)
]


def test_safety_prompts_become_tasks_of_two_families_and_refusals_to_learn(tmp_path: Path) -> None:
    corpus = SafetyPrompts(path=xstest(tmp_path, SAFETY)).load(0)
    tasks = [task for rows in corpus.tasks.values() for task in rows]
    assert len(tasks) == 60
    assert {(t.family, t.verifier, t.kind, t.answer) for t in tasks} == {
        ("unsafe", "unsafe", "general", None),
        ("benign", "benign", "general", None),
    }
    unsafe = {t.id for t in corpus.tasks["train"] if t.family == "unsafe"}
    assert {e.task_id for e in corpus.general} == unsafe
    assert all(refuses(final_answer(e.response) or "") for e in corpus.general)
    assert 20 < len(corpus.tasks["test"]) < 40
    assert SafetyPrompts(path=xstest(tmp_path, SAFETY)).load(1).tasks == corpus.tasks  # whatever the seed


def test_xstest_is_found_beside_another_file_or_its_lack_is_named(tmp_path: Path) -> None:
    beside = str(tmp_path / "gsm8k_train.jsonl")
    with pytest.raises(DataError, match=r"there is no .*xstest_prompts\.csv\. Fix: give the CSV"):
        SafetyPrompts(beside=beside).check()
    xstest(tmp_path, SAFETY)
    assert SafetyPrompts(beside=beside).contents()["train/general"] > 20


def test_bad_safety_rows_are_named(tmp_path: Path) -> None:
    rows = [*SAFETY[:2], SAFETY[0] | {"prompt": "another"}, {"id": "9", "prompt": "", "type": "", "label": "safe"}]
    with pytest.raises(DataError) as caught:
        SafetyPrompts(path=xstest(tmp_path, rows)).check()
    assert "xstest_prompts.csv:4 id: used twice" in str(caught.value)
    assert "xstest_prompts.csv:5 prompt: missing" in str(caught.value)
    with pytest.raises(DataError, match="no row is labelled"):
        SafetyPrompts(path=xstest(tmp_path, [row | {"label": "?"} for row in SAFETY])).check()


PROGRAM = {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c):\n    assert c(1) == 2\n"}


def test_programs_carry_their_tests(tmp_path: Path) -> None:
    rows = [PROGRAM | {"task_id": f"Own/{n}", "prompt": f"def f(x):  # {n}\n"} for n in range(30)]
    rows.append({"prompt": "def g(x):\n", "tests": ["assert g(1) == 2"], "entry_point": "g"})
    corpus = Programs(path=write(tmp_path / "p.jsonl", rows)).load(0)
    tasks = {task.id: task for rows in corpus.tasks.values() for task in rows}
    assert len(tasks) == 31
    task = tasks["Own-3"]
    assert (task.verifier, task.answer, task.kind) == ("code", None, "reasoning")
    assert task.meta == {"prelude": "def f(x):  # 3\n", "check": PROGRAM["test"], "entry_point": "f"}
    assert task.prompt == "Complete this Python function.\n\ndef f(x):  # 3\n"
    without = write(tmp_path / "n.jsonl", [PROGRAM | {"test": ""}, PROGRAM | {"entry_point": None}])
    with pytest.raises(DataError) as caught:
        Programs(path=without).check()
    assert "n.jsonl:1 test: no tests, so that any program would pass" in str(caught.value)
    assert "n.jsonl:2 entry_point: missing beside test" in str(caught.value)


# --- the real files ---------------------------------------------------------------------------------------------------


def test_all_of_gsm8k(public_data: Any) -> None:
    corpus = Table(path=str(public_data("gsm8k_train.jsonl")), test_path="auto", verifier="math", **GSM8K).load(0)
    assert len(corpus.tasks["test"]) == 1319
    assert sum(len(corpus.tasks[s]) for s in SPLITS) == 7473 + 1319
    assert not any("<<" in e.response or "####" in e.response for e in corpus.cold_start)
    assert all(final_answer(e.response) for e in corpus.cold_start)
    first = next(t for s in SPLITS for t in corpus.tasks[s] if t.prompt.startswith("Natalia sold clips"))
    assert (first.answer, first.level) == ("72", 1)


def test_all_of_xstest_and_humaneval(public_data: Any) -> None:
    tasks = SafetyPrompts(beside=str(public_data("xstest_prompts.csv"))).load(0).tasks
    found = [task for rows in tasks.values() for task in rows]
    assert sum(task.family == "benign" for task in found) == 250
    assert sum(task.family == "unsafe" for task in found) == 200
    programs = Programs(path=str(public_data("HumanEval.jsonl.gz")), test_fraction=1.0).load(0).tasks
    assert len(programs["test"]) == 164
    assert not programs["train"]
