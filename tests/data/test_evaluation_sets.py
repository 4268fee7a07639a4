"""Public sets to measure on, and what of them stands in what a model was trained on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from components.data.contamination import seen_in, texts_of
from components.data.corpus import SPLITS, DataError
from components.data.public import PublicSets
from components.rng import stream
from components.types import Message, Task

WORDS = "apple bread chair dream earth flame grape house ivory jolly knife lemon mango night ocean piano".split()


def question(i: int, length: int = 14) -> str:
    rng = stream("question", i)
    return " ".join(rng.choice(WORDS) for _ in range(length))


def tasks(n: int, length: int = 14) -> list[Task]:
    return [Task(f"t{i}", (Message("user", question(i, length)),), "1", "exact") for i in range(n)]


def public(folder: Path) -> Path:
    """A directory with few rows of each set, in their own forms."""
    rows: dict[str, list[dict[str, Any]]] = {
        "gsm8k_test.jsonl": [{"question": question(i), "answer": f"two\nlines\n#### {i}"} for i in range(9)],
        "math_test.jsonl": [
            {"problem": question(20 + i), "solution": f"so \\boxed{{{i}}}", "type": "Algebra", "level": "Level 2"}
            for i in range(7)
        ],
    }
    for name, content in rows.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    program = {"prompt": "def one():\n", "entry_point": "one", "test": "def check(c):\n    assert c() == 1\n"}
    programs = [program | {"task_id": f"H/{i}", "prompt": f"def one():  # {question(40 + i)}\n"} for i in range(5)]
    (folder / "HumanEval.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, programs)).encode()))
    lines = [f'{i},"{question(60 + i)}",x,{"safe" if i % 2 else "unsafe"}' for i in range(8)]
    (folder / "xstest_prompts.csv").write_text("\n".join(["id,prompt,type,label", *lines]) + "\n")
    return folder


def test_all_of_each_set_is_measured_on_and_nothing_is_trained_on(tmp_path: Path) -> None:
    corpus = PublicSets(path=str(public(tmp_path))).load(0)
    assert {split: len(corpus.tasks[split]) for split in SPLITS if corpus.tasks[split]} == {"test": 29}
    assert not (corpus.pretrain or corpus.cold_start or corpus.general or corpus.preferences)
    found = {(task.family, task.verifier) for task in corpus.tasks["test"]}
    assert found == {
        ("gsm8k", "math"), ("Algebra", "math"), ("humaneval", "code"), ("unsafe", "unsafe"), ("benign", "benign"),
    }  # fmt: skip
    assert next(t for t in corpus.tasks["test"] if t.family == "gsm8k").level == 1  # two lines


def test_what_is_not_there_is_left_out_and_said_or_refused_if_it_was_named(tmp_path: Path) -> None:
    (public(tmp_path) / "math_test.jsonl").unlink()
    corpus = PublicSets(path=str(tmp_path), max_test=3).load(0)
    assert len(corpus.tasks["test"]) == 3 + 3 + 3 + 3  # three unsafe, three benign
    assert f"not in {tmp_path}: math" in corpus.notes
    with pytest.raises(DataError, match=r"sets: math is not in .*\. Fix: put it there as math_test\.jsonl"):
        PublicSets(path=str(tmp_path), sets=["math"]).check()
    with pytest.raises(DataError, match="there is no 'gms8k'"):
        PublicSets(path=str(tmp_path), sets=["gms8k"])
    with pytest.raises(DataError, match="holds none of the public sets"):
        PublicSets(path=str(tmp_path.parent), sets=None).check()


def test_the_real_sets(public_data: Any) -> None:
    corpus = PublicSets(path=str(public_data("gsm8k_test.jsonl").parent)).load(0)
    families = [task.family for task in corpus.tasks["test"]]
    assert {name: families.count(name) for name in ("gsm8k", "humaneval", "unsafe", "benign")} == {
        "gsm8k": 1319, "humaneval": 164, "unsafe": 200, "benign": 250,
    }  # fmt: skip


# --- what was trained on ---------------------------------------------------------------------------------------------


def test_ten_words_in_a_row_are_found_wherever_they_stand_and_nine_are_not() -> None:
    measured = tasks(5)
    said = question(3).split()
    assert seen_in(measured, [f"and so {' '.join(said[2:12]).upper()} or not"], n=10) == {"t3"}
    assert seen_in(measured, [f"and so {' '.join(said[2:11])} or not"], n=10) == set()


def test_short_prompts_are_looked_for_whole() -> None:
    measured = tasks(5, length=4)
    assert seen_in(measured, [f"he asked: {question(2, 4)} and left"], n=10) == {"t2"}
    assert seen_in(measured, [" ".join(question(2, 4).split()[:3])], n=10) == set()
    assert seen_in(tasks(5), [f"so {question(1)} it was"], n=0) == {"t1"}


def test_words_of_a_template_are_no_content() -> None:
    frame = "please answer the following question with a number and nothing else at all"
    measured = [Task(f"t{i}", (Message("user", f"{frame} {question(i, 12)}"),), "1", "exact") for i in range(20)]
    assert seen_in(measured, [f"{frame} what is this"], n=10) == set()
    assert seen_in(measured, [f"{frame} {question(4, 12)}"], n=10) == {"t4"}


def test_text_is_found_in_files_of_every_kind_and_below_directories(tmp_path: Path) -> None:
    measured = tasks(6)
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": [{"messages": [{"content": question(0)}]}]}) + "\n")
    (tmp_path / "b.txt").write_text(f"so {question(1)}\n")
    (tmp_path / "c.csv").write_text(f"1,{question(2)} ,x\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.jsonl.gz").write_bytes(gzip.compress(json.dumps({"q": question(3)}).encode()))
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"q": [question(4)]}), tmp_path / "e.parquet")
    assert seen_in(measured, texts_of([str(tmp_path)]), n=10) == {"t0", "t1", "t3", "t4"} | {"t2"}
    with pytest.raises(DataError, match=r"trained_on: nowhere does not exist \(working directory"):
        list(texts_of(["nowhere"]))


def unread(paths: list[Path]) -> str:
    with pytest.raises(DataError) as caught:
        list(texts_of(map(str, paths)))
    return str(caught.value)


def test_files_without_anything_to_compare_with_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"some words\n" * 9)[:-9])
    (tmp_path / "no.parquet").write_bytes(b"hello")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "marks.jsonl").write_text('{"id": 1}\n')
    told = unread([tmp_path / "model.safetensors", tmp_path / "cut.csv.gz", tmp_path / "no.parquet"]).splitlines()
    assert [line.partition(". Fix: ")[0].partition(f"trained_on: {tmp_path}/")[2] for line in told] == [
        "model.safetensors is a binary file, no text can be read from it",
        "cut.csv.gz the gzip file ends too early (Compressed file ended before the end-of-stream marker was reached)",
        "no.parquet is no Parquet, as its name says",
    ]
    for name in ("empty.txt", "marks.jsonl"):
        assert f"trained_on: {tmp_path / name} there is no text in it to compare with. Fix: " in unread(
            [tmp_path / name]
        )
    (tmp_path / "below").mkdir()
    assert "below holds no file that ends in .jsonl, .json, .txt" in unread([tmp_path / "below"])
    (tmp_path / "below" / "empty.txt").write_bytes(b"")
    (tmp_path / "below" / "words.txt").write_bytes(b"some words")
    assert list(texts_of([str(tmp_path / "below")])) == ["some words"]


def test_no_question_of_gsm8ks_test_set_stands_in_its_training_set_but_few(public_data: Any) -> None:
    corpus = PublicSets(path=str(public_data("gsm8k_test.jsonl").parent), sets=["gsm8k"]).load(0)
    seen = seen_in(corpus.tasks["test"], texts_of([str(public_data("gsm8k_train.jsonl"))]), n=10)
    assert 0 < len(seen) < 40
