"""Toolsets: what they answer, what they leave, and what they refuse."""

import sqlite3

import pytest

from components.environments.agent import ToolEnvironment
from components.environments.sandbox.outcome import SandboxUnavailable
from components.environments.sandbox.pool import Sandbox
from components.environments.tool_loop import ToolError
from components.environments.tools.arithmetic import calculator
from components.environments.tools.database import Database
from components.environments.tools.host import Broken, Here
from components.environments.tools.keyvalue import KeyValue
from components.environments.tools.python import Python
from components.environments.tools.search import Search
from components.types import Message, Task


def task(name="t", **meta):
    return Task(name, (Message("user", "go"),), None, "exact", meta=meta)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*(3+4)", "84"),
        (" 7 / 2 ", "3.5"),
        ("-7//2", "-4"),
        ("0.1+0.2", "0.3"),
        ("10%3", "1"),
        ("999999999*999999999", "999999998000000001"),
        ("1/3", "0.333333333333"),
    ],
)
def test_the_calculator_is_exact(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "2**9", "a", "f(1)", "1 if 1 else 2", "'a'*3", "1e40", "9" * 31, "(" * 300, "1;2", "²", "1<2", "True"],
)
def test_the_calculator_refuses_what_is_no_arithmetic(expression):
    with pytest.raises(ToolError, match="not an arithmetic expression"):
        calculator(expression)


def test_division_by_zero_is_said():
    with pytest.raises(ToolError, match="division by zero"):
        calculator("1/(2-2)")


def test_a_store_is_the_episodes_own_and_its_end_is_its_state():
    toolset, mine = KeyValue(), task(store={"a": 1})
    one, two = toolset.open(mine), toolset.open(mine)
    assert one.get("a") == "1"
    assert (one.put("b", "x y"), one.delete("a")) == ("ok", "ok")
    for refused in (lambda: one.get("a"), lambda: one.delete("a")):
        with pytest.raises(ToolError, match="no key 'a'"):
            refused()
    assert (one.state(), two.state()) == ({"b": "x y"}, {"a": "1"})


SHOP = """
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL);
INSERT INTO item VALUES (1, 'pen', 1.5), (2, 'ink', NULL)
"""


def test_a_database_answers_changes_and_is_inspected():
    session = Database().open(task(database=SHOP))
    assert session.query("SELECT name, price FROM item ORDER BY id") == "name|price\npen|1.5\nink|"
    assert session.query("UPDATE item SET price = 2 WHERE name = 'ink'") == "ok, 1 rows changed"
    session.query("BEGIN")
    session.query("DELETE FROM item")
    assert session.state() == {"item": {"columns": ["id", "name", "price"], "rows": [[1, "pen", 1.5], [2, "ink", 2.0]]}}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT colour FROM item", "no such column: colour"),
        ("ATTACH '/tmp/other.db' AS other", "not authorized"),
        ("PRAGMA database_list", "not authorized"),
        ("SELECT current_timestamp", "not authorized|prohibited"),
        ("SELECT load_extension('x')", "not authorized|no such function"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n", "takes too long"),
        ("SELECT hex(zeroblob(2000000))", "too big"),
    ],
)
def test_a_database_refuses_what_reaches_out_or_has_no_end(sql, message):
    session = Database().open(task(database=SHOP))
    with pytest.raises(ToolError, match=message):
        session.query(sql)
    assert session.query("SELECT count(*) FROM item").endswith("\n2")


def test_a_database_that_grows_is_stopped():
    session = Database().open(task(database="CREATE TABLE t (b)"))
    row = "SELECT zeroblob(90000) UNION ALL "
    with pytest.raises(ToolError, match=r"full"):
        session.query(f"INSERT INTO t {row * 300}SELECT 1")


MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30000) "


@pytest.mark.parametrize(
    "sql",
    [
        MANY + "SELECT i, zeroblob(90000) AS z FROM n ORDER BY i % 7, z",
        "CREATE TEMP TABLE big AS " + MANY + "SELECT zeroblob(90000) AS z FROM n",
    ],
    ids=["sort", "temporary"],
)
def test_what_a_query_needs_for_itself_is_no_file_and_has_a_limit(sql, tmp_path, monkeypatch):
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    session = Database().open(task(database="CREATE TABLE t (a)"))
    with pytest.raises(ToolError, match=r"takes too (much memory|long)"):
        session.query(sql)
    assert session.query("SELECT 1") == "1\n1" and list(tmp_path.iterdir()) == []


def test_steps_that_are_long_are_limited_by_the_time_of_the_cpu(monkeypatch):
    monkeypatch.setattr("components.environments.tools.database._SECONDS", 0.05)
    session = Database().open(task(database=SHOP))
    long = "instr(hex(zeroblob(49000)), hex(zeroblob(20000)) || 'b')"
    with pytest.raises(ToolError, match="takes too long"):
        session.query(f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + {long} FROM n) SELECT max(i) FROM n")
    with pytest.raises(ToolError, match="pattern too complex"):
        session.query("SELECT hex(zeroblob(9000)) LIKE '%' || hex(zeroblob(9000)) || 'b'")


def test_what_json_cannot_hold_is_spelled_out_in_the_state():
    session = Database().open(task(database="CREATE TABLE t (a)"))
    for value in ("9e999", "cast(x'ff41' AS text)", "char(55296)", "x'00ff'", "NULL"):
        session.query(f"INSERT INTO t VALUES ({value})")
    rows = [row[0] for row in session.state()["t"]["rows"]]
    assert rows == [{"real": "inf"}, "\\xffA", "\\xed\\xa0\\x80", {"blob": "00ff"}, None]
    assert session.query("SELECT a FROM t LIMIT 2") == "a\ninf\n\\xffA"


def test_an_episode_is_always_at_the_same_time():
    session = Database().open(task(database="CREATE TABLE t AS SELECT date('now') AS d"))
    assert session.query("SELECT d, datetime(), strftime('%Y', 'now'), date('2024-02-28', '+2 days') FROM t") == (
        "d|datetime()|strftime('%Y', 'now')|date('2024-02-28', '+2 days')\n"
        "2023-11-14|2023-11-14 22:13:20|2023|2024-03-01"
    )
    for told in ("sqlite_version()", "fts3_tokenizer('simple')"):
        with pytest.raises(ToolError, match="not authorized"):
            session.query(f"SELECT {told}")


def test_chance_in_a_database_is_the_tasks():
    draws = [Database().open(task(name)).query("SELECT random(), hex(randomblob(4))") for name in ("a", "a", "b")]
    assert draws[0] == draws[1] != draws[2]


def test_many_rows_are_cut():
    session = Database().open(task())
    said = session.query("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500) SELECT i FROM n")
    assert said.split("\n")[-2:] == ["100", "…"]


TEXTS = [
    {"id": "1", "title": "Rivers", "text": "The Rhine flows through Basel and Cologne."},
    {"id": "2", "title": "Mountains", "text": "The Matterhorn stands above Zermatt."},
    {"id": "3", "title": "Cologne", "text": "Cologne has a cathedral, and the Rhine."},
]


def test_search_ranks_by_words_and_remembers_what_was_read():
    pytest.importorskip("rank_bm25", reason="rank_bm25 is not installed (extra search)")
    session = Search().open(task(documents=TEXTS))
    assert session.search("matterhorn").startswith("2: Mountains The Matterhorn")
    assert [line[0] for line in session.search("Cologne cathedral", 2).split("\n")] == ["3", "1"]
    assert session.search("volcano") == "nothing found"
    assert session.read("1") == TEXTS[0]["text"]
    with pytest.raises(ToolError, match="no text '9'"):
        session.read("9")
    with pytest.raises(ToolError, match="count must lie"):
        session.search("a", 11)
    assert session.state() == {"opened": ["1"]}


def test_search_reads_a_file_once_for_all_episodes(tmp_path):
    pytest.importorskip("rank_bm25", reason="rank_bm25 is not installed (extra search)")
    path = tmp_path / "texts.jsonl"
    import json

    path.write_text("\n".join(map(json.dumps, TEXTS)))
    toolset = Search(path=path)
    first = toolset.open(None)
    path.unlink()
    assert toolset.open(None).search("zermatt") == first.search("zermatt")
    path.write_text('{"id": 1}')
    with pytest.raises(ValueError, match="line 1: no id and text"):
        Search(path=path).open(None)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(cpu_seconds=1, idle_seconds=1.0, memory_mib=256) as sandbox:
        try:
            assert sandbox.backend
        except SandboxUnavailable as error:
            pytest.skip(f"no sandbox here: {error}")
        yield sandbox


def test_python_remembers_from_call_to_call(sandbox):
    one, two = (Python(sandbox=sandbox).open(task(python=["start = 40"])) for _ in "ab")
    assert one.python("import math\nx = start + 1\nx") == "41\n"
    assert one.python("x += 1; print(math.isqrt(x), x)") == "6 42\n"
    assert one.python("y = x") == "(no output)"
    with pytest.raises(ToolError, match="NameError: name 'x' is not defined"):
        two.python("print(1)\nx")
    assert two.python("start") == "40\n"
    assert one.state() == {
        "cells": ["start = 40", "import math\nx = start + 1\nx", "x += 1; print(math.isqrt(x), x)", "y = x"]
    }


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(7)", "the interpreter is as before"),
        ("while True: pass", "CPU time"),
        ("b'x' * (1 << 30)", "MemoryError|more than 256 MiB"),
        ("import time; time.sleep(60)", "the interpreter is as before"),
    ],
    ids=["exits", "spins", "grows", "sleeps"],
)
def test_what_breaks_the_interpreter_is_as_if_it_had_never_been(sandbox, code, message):
    session = Python(sandbox=sandbox).open(None)
    session.python("x = 1")
    with pytest.raises((RuntimeError, ToolError), match=message):
        session.python(f"x = 2\n{code}")
    assert session.python("x") in ("1\n", "2\n")


def test_a_flood_of_prints_is_cut(sandbox):
    assert len(Python(sandbox=sandbox, max_chars=50).open(None).python("print('x' * 10**6)")) == 50


def test_state_that_is_no_json_breaks_the_episode_and_one_that_is_too_large_is_none_that_passes():
    class Odd(KeyValue):
        def open(self, task):
            session = super().open(task)
            session.state = lambda: {"x": {1, 2}} if task is None else {"x": "y" * (1 << 20)}
            return session

    with pytest.raises(Broken, match="is no JSON"):
        Here([Odd()], None, 100).state()
    assert Here([Odd()], task(), 100).state() == {"too_large": (1 << 20) + len('{"store": {"x": ""}}')}


def test_toolsets_of_r1flow_share_the_process_and_slow_ones_a_thread(sandbox):
    quick = ToolEnvironment(tools=[calculator, KeyValue(), Database()])
    assert not quick.asynchronous
    assert ToolEnvironment(tools=[Python(sandbox=sandbox)]).asynchronous


def test_a_look_at_the_state_lifts_no_limit_of_the_database(tmp_path):
    session = Database().open(task(database="CREATE TABLE t (a); INSERT INTO t VALUES (1)"))
    assert session.state() == {"t": {"columns": ["a"], "rows": [[1]]}}
    for statement in (f"ATTACH '{tmp_path}/x.db' AS x", f"VACUUM INTO '{tmp_path}/y.db'", "PRAGMA user_version = 3"):
        with pytest.raises(ToolError):
            session.query(statement)
    with pytest.raises(ToolError, match="takes too long"):
        session.query("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("instr('abcab', 'ca')", "3"),
        ("instr('abc', 'x')", "0"),
        ("instr(x'0001ff', x'ff')", "3"),
        ("instr(12345, 34)", "3"),
        ("instr(NULL, 'a')", ""),
        ("replace('a-b-c', '-', '+')", "a+b+c"),
        ("replace('abc', '', 'x')", "abc"),
        ("replace(1010, 0, 2)", "1212"),
        ("replace('a', NULL, 'b')", ""),
    ],
)
def test_functions_that_are_not_sqlites_own_say_what_those_say(sql, answer):
    own = sqlite3.connect(":memory:").execute(f"SELECT {sql}").fetchone()[0]
    assert Database().open(task()).query(f"SELECT {sql} AS a") == f"a\n{answer}"
    assert answer == ("" if own is None else str(own))


def test_an_answer_has_a_length_and_a_statement_too():
    session = Database().open(task())
    wide = ", ".join(["hex(zeroblob(9000))"] * 3)
    said = session.query(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 90) SELECT {wide} FROM n"
    )
    assert len(said) < 150_000 and said.endswith("\n…")
    with pytest.raises(ToolError, match="too many columns"):
        session.query("SELECT " + ", ".join(["1"] * 201))
    with pytest.raises(ToolError, match="at most 60,000 characters"):
        session.query("SELECT '" + "x" * 60_000 + "'")
    with pytest.raises(ToolError, match=r"user-defined function|too big"):
        session.query("SELECT replace(hex(zeroblob(9000)), '0', '0123456789')")
