"""The user's own data: columns, splits, traces and pairs – and the one line that says what to put right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.data.corpus import SPLITS, DataError
from components.data.readers import Csv, Hub, Jsonl, Parquet
from components.data.tables import Table
from components.data.verify import is_right

ROWS = [{"prompt": f"how much is {i} plus {i} ?", "answer": str(2 * i)} for i in range(200)]


def write(path: Path, rows: list[Any]) -> str:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return str(path)


def table(path: str, **settings: Any) -> Table:
    reader = Jsonl(path=path, test_path=settings.pop("test_path", None), max_line_mb=settings.pop("max_line_mb", 10))
    return Table(reader=reader, **settings)


def problem(path: str, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        table(path, **settings).check()
    return str(caught.value)


def test_every_row_lands_in_exactly_one_split(tmp_path: Path) -> None:
    corpus = table(write(tmp_path / "q.jsonl", ROWS)).load(0)
    found = [task.prompt for split in SPLITS for task in corpus.tasks[split]]
    assert sorted(found) == sorted(row["prompt"] for row in ROWS)
    assert all(corpus.tasks[split] for split in SPLITS)
    assert len(corpus.tasks["test"]) == pytest.approx(20, abs=10)


def test_the_evaluation_does_not_move_with_the_seed_or_the_order_of_rows(tmp_path: Path) -> None:
    first = table(write(tmp_path / "q.jsonl", ROWS)).load(0)
    other = table(write(tmp_path / "r.jsonl", ROWS[::-1])).load(1)
    for split in ("test", "dev"):
        assert {t.prompt for t in first.tasks[split]} == {t.prompt for t in other.tasks[split]}
    assert {t.prompt for t in first.tasks["fresh"]} != {t.prompt for t in other.tasks["fresh"]}


def test_a_test_file_of_its_own_is_the_test_split(tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.jsonl", ROWS[:150]), write(tmp_path / "b.jsonl", ROWS[150:])
    corpus = table(train, test_path=test, max_test=10).load(0)
    assert {t.prompt for t in corpus.tasks["test"]} <= {row["prompt"] for row in ROWS[150:]}
    assert len(corpus.tasks["test"]) == 10


def test_columns_traces_levels_and_pairs_are_mapped(tmp_path: Path) -> None:
    rows = [
        {
            "question": f"{i} + 1 ?",
            "gold": i + 1,
            "solution": "add one",
            "good": f"<think>t</think><answer>{i + 1}</answer>",
            "bad": "no",
            "subject": "sums",
            "level": i % 2,
        }
        for i in range(60)
    ]
    columns = {"prompt": "question", "answer": "gold", "trace": "solution", "chosen": "good", "rejected": "bad"}
    corpus = table(write(tmp_path / "q.jsonl", rows), columns={**columns, "family": "subject"}).load(0)
    assert {task.cell for task in corpus.tasks["train"]} == {"sums/0", "sums/1"}
    by_id = {task.id: task for split in SPLITS for task in corpus.tasks[split]}
    assert len(corpus.cold_start) == len(corpus.preferences) > 30
    for example in corpus.cold_start:
        task = by_id[example.task_id]
        assert example.response == f"<think>add one</think><answer>{task.answer}</answer>"
        assert is_right(task, example.response)
    assert corpus.preferences[0].rejected == "<think></think><answer>no</answer>"  # without tags: an empty thought
    held_out = {task.id for split in ("test", "dev") for task in corpus.tasks[split]}
    assert held_out.isdisjoint(example.task_id for example in corpus.cold_start)
    assert any(line.startswith("0 + 1 ? add one 1") for line in corpus.pretrain) or "0 + 1 ?" in {
        task.prompt for split in ("test", "dev") for task in corpus.tasks[split]
    }


def test_the_answer_behind_a_marker_leaves_the_trace_before_it(tmp_path: Path) -> None:
    rows = [{"prompt": f"q {i}", "answer": f"we count to {i}\n#### {i}"} for i in range(40)]
    corpus = table(write(tmp_path / "q.jsonl", rows), answer_after="####", verifier="math").load(0)
    example = corpus.cold_start[0]
    number = example.messages[0].content.split()[1]
    assert example.response == f"<think>we count to {number}</think><answer>{number}</answer>"
    assert {task.verifier for task in corpus.tasks["train"]} == {"math"}
    assert problem(str(tmp_path / "q.jsonl"), answer_after="%%").startswith(
        f"{tmp_path}/q.jsonl:1 answer: no '%%' in it (got \"we count to 0"
    )


def test_rows_without_an_answer_are_general_and_stay_out_of_rejection_sampling(tmp_path: Path) -> None:
    rows = [{"prompt": f"tell me {i}", "trace": f"<think>hm</think>fact {i}"} for i in range(40)]
    corpus = table(write(tmp_path / "q.jsonl", rows)).load(0)
    assert {(task.kind, task.verifier) for task in corpus.tasks["train"]} == {("general", "open")}
    assert corpus.tasks["fresh"] == corpus.cold_start == []
    assert corpus.general[0].response.startswith("<think>hm</think><answer>fact ")


def test_a_conversation_keeps_its_turns(tmp_path: Path) -> None:
    turns = [("system", "be brief"), ("user", "hi"), ("assistant", "yes ?"), ("user", "sum 1 1")]
    row = {"messages": [{"role": role, "content": content} for role, content in turns], "answer": "2"}
    corpus = table(write(tmp_path / "q.jsonl", [row]), test_fraction=0.0, dev_fraction=0.0, fresh_fraction=0.0).load(0)
    assert [(m.role, m.content) for m in corpus.tasks["train"][0].messages] == turns


def test_byte_order_mark_and_windows_line_ends_are_accepted_and_unused_columns_noted(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(
        b"\xef\xbb\xbf" + b'{"prompt": "a", "answer": "1", "hint": ""}\r\n{"prompt": "b", "answer": "2"}\r\n'
    )
    corpus = table(str(file)).load(0)
    assert sum(map(len, corpus.tasks.values())) == 2
    assert corpus.notes == [f"{file}: starts with a byte-order mark (ignored)", "columns not used: hint"]


GOOD = {"prompt": "p", "answer": "1"}
TURN = {"role": "assistant", "content": "a"}
CASES: list[tuple[list[Any], str]] = [
    (['{"prompt": '], ":1 line: not JSON at column"),
    (["[1, 2]"], ":1 line: an array instead of an object (got [1, 2]). Fix: one object per line"),
    (['{"prompt": "p", "answer": NaN}'], ":1 line: the literal NaN isn't JSON"),
    (
        [GOOD, {"promt": "p", "answer": "1"}],
        ":2 prompt: missing; the nearest is 'promt'. Fix: rename the column or set",
    ),
    ([{"prompt": " ", "answer": "1"}], ':1 prompt: empty (got " "). Fix: drop the row'),
    ([{"prompt": 3, "answer": "1"}], ":1 prompt: expected text (got 3)"),
    ([{"prompt": "p", "answer": [1]}], ":1 answer: expected text or a number (got [1])"),
    ([{"prompt": "p", "answer": True}], ":1 answer: expected text or a number (got true)"),
    ([{"prompt": "p", "answer": " "}], ":1 answer: empty, it can never score"),
    ([{"prompt": "p", "answer": "9" * 2001}], ":1 answer: 2001 characters"),
    ([GOOD, {"prompt": "p", "answer": "2"}], ':2 answer: same prompt, different answer (got "1" in '),
    ([{**GOOD, "id": "x"}, {"prompt": "q", "answer": "1", "id": "x"}], ":2 id: already used in "),
    ([{**GOOD, "id": "../x"}], ':1 id: not a name (got "../x")'),
    ([{**GOOD, "level": -1}], ":1 level: expected a whole number from 0 (got -1)"),
    ([{**GOOD, "trace": "<answer>1</answer>"}], ":1 trace: tags out of order"),
    ([{**GOOD, "chosen": "x"}], ":1 rejected: missing beside the other (got null). Fix: give both"),
    ([{"messages": "hi", "answer": "1"}], ":1 messages: expected a list of role and content"),
    ([{"messages": [{"role": "bot", "content": "a"}], "answer": "1"}], ':1 messages: unknown role (got "bot")'),
    ([{"messages": [TURN], "answer": "1"}], ":1 messages: must end with the user's turn (got assistant)"),
    (
        [{"messages": [TURN, TURN, {"role": "user", "content": "a"}], "answer": "1"}],
        ":1 messages: two assistant turns running",
    ),
    (
        [{"messages": [{"role": "tool", "content": "4"}, {"role": "user", "content": "a"}], "answer": "1"}],
        ":1 messages: a tool message without a call before it",
    ),
]


@pytest.mark.parametrize(("rows", "message"), CASES, ids=[message.split(" ", 1)[1][:40] for _, message in CASES])
def test_each_kind_of_bad_row_is_told_with_file_line_field_and_remedy(tmp_path: Path, rows, message: str) -> None:
    text = problem(write(tmp_path / "q.jsonl", rows))
    assert text.startswith(f"{tmp_path}/q.jsonl{message}")
    assert ". Fix: " in text


def test_an_empty_a_missing_and_a_binary_file_are_named(tmp_path: Path) -> None:
    assert "q.jsonl:1 file: is empty" in problem(write(tmp_path / "q.jsonl", []))
    assert f"no such file (working directory {Path.cwd()})" in problem(str(tmp_path / "none.jsonl"))
    assert "is a directory" in problem(str(tmp_path))
    (tmp_path / "b.jsonl").write_bytes(b'{"prompt": "caf\xe9", "answer": "1"}\n')
    assert "b.jsonl:1 line: not UTF-8 at byte 15 (got 0xe9)" in problem(str(tmp_path / "b.jsonl"))


def test_a_truncated_last_line_and_an_endless_line_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(GOOD) + '\n{"prompt": "p')
    assert "the last line looks truncated" in problem(str(file))
    file.write_text(json.dumps({"prompt": "x" * 2_000_000, "answer": "1"}) + "\n")
    assert "q.jsonl:1 line: longer than 1 MB" in problem(str(file), max_line_mb=1)


def test_all_problems_are_listed_up_to_twenty(tmp_path: Path) -> None:
    lines = problem(write(tmp_path / "q.jsonl", [{"prompt": "", "answer": "1"}] * 33)).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "… and 13 more"


def test_wrong_settings_name_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [GOOD])
    with pytest.raises(DataError, match=r"columns\.promt: no such field; the nearest is 'prompt'"):
        table(path, columns={"promt": "question"})
    assert "question: no such column (got prompt, answer)" in problem(path, columns={"prompt": "question"})
    with pytest.raises(DataError, match="test_fraction"):
        table(path, test_fraction=1.1)
    with pytest.raises(DataError, match="fresh_fraction"):
        table(path, fresh_fraction=1.0)
    with pytest.raises(DataError, match="verifier: unknown"):
        table(path, verifier="guess")


def test_the_fingerprint_follows_the_contents(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", ROWS)
    before = table(path).fingerprint()
    assert table(path).fingerprint() == before
    write(tmp_path / "q.jsonl", ROWS[:-1])
    assert table(path).fingerprint() != before


def test_parquet_csv_and_a_local_directory_give_the_same_tasks_as_jsonl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    expected = table(write(tmp_path / "q.jsonl", ROWS)).load(0)
    whole = datasets.Dataset.from_list(ROWS)
    whole.to_parquet(str(tmp_path / "q.parquet"))
    whole.to_csv(str(tmp_path / "q.csv"))
    (tmp_path / "hub").mkdir()
    write(tmp_path / "hub" / "train.jsonl", ROWS)
    readers = [
        Parquet(path=str(tmp_path / "q.parquet")),
        Csv(path=str(tmp_path / "q.csv")),
        Hub(name=str(tmp_path / "hub")),
    ]
    for reader in readers:
        assert Table(reader=reader).load(0).tasks == expected.tasks


def test_cells_of_a_csv_stay_text_and_a_broken_parquet_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "q.csv").write_text("prompt,answer\nagent ?,007\nnone ?,NA\nopen ?,\n")
    corpus = Table(reader=Csv(path=str(tmp_path / "q.csv"))).load(0)
    assert {task.answer for tasks in corpus.tasks.values() for task in tasks} == {"007", "NA", None}
    (tmp_path / "q.parquet").write_text("nothing")
    with pytest.raises(DataError, match="not readable as Parquet"):
        Table(reader=Parquet(path=str(tmp_path / "q.parquet"))).check()


def test_a_row_of_a_csv_with_too_many_cells_is_named(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('prompt,answer\n"a, b",1\na, b,1\n')
    with pytest.raises(DataError, match=r"q\.csv:3 line: another number of cells than the header"):
        Table(reader=Csv(path=str(tmp_path / "q.csv"))).check()
