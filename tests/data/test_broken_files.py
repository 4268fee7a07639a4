"""Files that are damaged, mislabelled or hold what no text is: told with line, value and remedy, or read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from components.data.corpus import DataError
from components.data.mix import Mixture, Part
from components.data.programs import Programs
from components.data.readers import reader_of
from components.data.safety import SafetyPrompts
from components.data.tables import Table

ROWS = "".join(json.dumps({"prompt": f"What is {i}?", "answer": str(i * i)}) + "\n" for i in range(600)).encode()
CSV = b"prompt,answer\n" + b"".join(b"What is %d?,%d\n" % (i, i * i) for i in range(600))


def flipped(packed: bytes) -> bytes:
    return packed[:-8] + bytes(4) + packed[-4:]  # the checksum


def damaged(packed: bytes) -> bytes:
    return packed[:200] + bytes([packed[200] ^ 255]) + packed[201:]


BROKEN = {
    "cut.jsonl.gz": (gzip.compress(ROWS)[:-9], [" file: the gzip file ends too early", "download or write it again"]),
    "cut.csv.gz": (gzip.compress(CSV)[:-9], [" file: the gzip file ends too early", "download or write it again"]),
    "plain.jsonl.gz": (ROWS, [":1 file: is not compressed with gzip", "rename it without .gz"]),
    "plain.tsv.gz": (CSV, [":1 file: is not compressed with gzip", "rename it without .gz"]),
    "checksum.jsonl.gz": (flipped(gzip.compress(ROWS)), [":601 file: the gzip file is damaged (CRC check failed"]),
    "inside.jsonl.gz": (damaged(gzip.compress(ROWS)), [" file: the gzip file is damaged (", "write it again"]),
    "table.parquet.gz": (b"", ["Parquet is compressed inside. Fix: gunzip it"]),
    "half.jsonl": (
        b'{"prompt": "a"}\n{"prompt": "a \\ud800 b"}\n',
        [":2 prompt: half of a surrogate pair, which is no character (got \\ud800)", "take it out"],
    ),
    "inner.jsonl": (b'{"messages": [{"content": "\\uDFFF"}]}\n', [":1 messages: half of a surrogate pair"]),
    "digits.jsonl": (
        b'{"prompt": "12345678901", "answer": ' + b"9" * 5000 + b"}\n",
        [":1 answer: a whole number of more than 4300 digits", "write it as text"],
    ),
    "twice.jsonl": (b'{"prompt": "a", "prompt": "b"}\n', [":1 prompt: this key stands twice in one object"]),
    "header.csv": (b"prompt,answer,prompt\na,b,c\n", [':1 line: the column "prompt" stands twice in the header']),
    "latin.csv": (
        CSV.replace(b"is 432?", b"is \xe9?"),
        [":434 line: not UTF-8 at byte 8 (got 0xe9). Fix: save as UTF"],
    ),
    "quotes.csv": (b'prompt,answer\na,b\n"c"d,e\n', [":3 line: not readable as CSV"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_told_with_place_and_remedy(tmp_path: Path, name: str) -> None:
    content, told = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(reader_of(str(tmp_path / name)).rows("train", []) or ())
    assert str(caught.value).startswith(str(tmp_path / name))
    assert all(text in str(caught.value) for text in [*told, " Fix: "])


@pytest.mark.parametrize("name", ["q.jsonl.gz", "q.csv.gz", "q.tsv.gz"])
def test_every_text_file_may_be_gzipped(tmp_path: Path, name: str) -> None:
    content = ROWS if "jsonl" in name else CSV.replace(b",", b"\t") if "tsv" in name else CSV
    (tmp_path / name).write_bytes(gzip.compress(content))
    rows = [row for _, row in reader_of(str(tmp_path / name)).rows("train", []) or ()]
    assert len(rows) == 600
    assert rows[7] == {"prompt": "What is 7?", "answer": "49"}


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_bytes(b'{"prompt": "\\ud83d\\ude00"}\n')
    assert [row for _, row in reader_of(str(tmp_path / "q.jsonl")).rows("train", []) or ()] == [{"prompt": "😀"}]


def test_labels_that_are_not_known_are_told_with_their_place_and_those_that_are(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    labels = ["safe", "unsafe", "maybe", "safe", "who knows"]
    file.write_text("prompt,label\n" + "".join(f"question {i}?,{label}\n" for i, label in enumerate(labels)))
    [note] = SafetyPrompts(path=str(file)).load(0).notes
    known = "unsafe or harmful (to refuse), safe or benign or harmless (to answer)"
    assert note == (
        f'2 rows with another label than {known} were left out: {file}:4 (got "maybe"), {file}:6 (got "who knows")'
    )
    file.write_text("prompt,label\na?,yes\n")
    with pytest.raises(DataError) as caught:
        SafetyPrompts(path=str(file)).check()
    assert f'label: no row is labelled {known}; {file}:2 (got "yes"). Fix: set unsafe and benign' in str(caught.value)


@pytest.mark.parametrize("kind", ["reasoning", "general", "safety", None])
def test_a_part_may_have_a_kind_of_ones_own(tmp_path: Path, kind: str | None) -> None:
    (tmp_path / "q.jsonl").write_bytes(ROWS)
    part = Part(source=Table(path=str(tmp_path / "q.jsonl")), kind=kind)
    tasks = Mixture(parts={"own": part}).load(0).tasks["train"]
    assert {task.kind for task in tasks} == {kind or "reasoning"}


def test_every_row_with_tests_that_test_nothing_is_named(tmp_path: Path) -> None:
    good = "def check(candidate):\n    for n in (1, 2):\n        assert candidate(n) == n\n"
    tests = [good, "def check(c):\n  assert (", "def test(c):\n  assert c(1)", 'def check(c):\n  """c"""\n  pass', "\0"]
    rows = [{"prompt": f"def f(x):  # {i}\n", "entry_point": "f", "test": test} for i, test in enumerate(tests)]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as caught:
        Programs(path=str(file)).check()
    assert [line.partition(" (got")[0].partition(". Fix")[0] for line in str(caught.value).splitlines()] == [
        f"{file}:2 test: is no Python: '(' was never closed in its line 2",
        f"{file}:3 test: defines no check(candidate)",
        f"{file}:4 test: its check asserts nothing, so that any program would pass",
        f"{file}:5 test: holds the character NUL",
        f"{file}:5 test: no tests, so that any program would pass",
    ]
