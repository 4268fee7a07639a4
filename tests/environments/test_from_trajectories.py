"""Environments from transcripts: what becomes one, what does not, and what its verifier asks for."""

import json
from collections import Counter

import pytest

from components.data import jobs_database, jobs_shell
from components.data.jobs import RECORDED, jobs, record
from components.environments.from_trajectories.build import build, working_shell
from components.environments.from_trajectories.importing import read_transcripts
from components.environments.from_trajectories.transcript import REASONS
from components.environments.tools.database import Database
from components.environments.tools.host import Broken
from components.environments.tools.shell import Shell
from components.rewards.state import reached
from components.types import Message, Task
from tests.environments.planted import ITEMS, PLANTED, query, shell


@pytest.fixture(scope="module")
def sandbox():
    try:
        return working_shell(Shell(seconds=120.0))
    except Broken as error:
        pytest.skip(str(error)[:200])


def recorded(job, i, form, tool, world):
    session = tool.open(Task(f"j{i}", (Message("user", "-"),), None, "state", meta=job.world))
    return record(job, getattr(session, job.tool), form, name=f"{job.tool}-{i:02d}", world=world)


def write(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def built(path, rows, shell=None):
    return build(read_transcripts(write(path, rows)), judge=reached, shell=shell, jobs=2)


def test_every_database_job_becomes_an_environment_in_every_form_with_its_world_recorded_or_not(tmp_path):
    rows = [
        recorded(job, i, RECORDED[i % 4], Database(), world=i % 2 == 0)
        for i, job in enumerate(jobs(jobs_database.FAMILIES, 5, 36))
    ]
    found = built(tmp_path / "all.jsonl", rows)
    assert found.refused == []
    assert len(found.environments) == 36


def test_the_planted_transcripts_without_commands_are_refused_with_their_reasons(tmp_path):
    rows = [(row, reason) for row, reason in PLANTED if "database" in row]
    found = built(tmp_path / "planted.jsonl", [row for row, _ in rows])
    assert {r.id: r.reason for r in found.refused} == {row["id"]: reason for row, reason in rows}


@pytest.mark.slow
def test_of_sixty_experts_and_twenty_planted_the_experts_become_environments_and_the_planted_do_not(tmp_path, sandbox):
    experts = []
    for families, tool in ((jobs_shell.FAMILIES, sandbox), (jobs_database.FAMILIES, Database())):
        for i, job in enumerate(jobs(families, 7, 30)):
            experts.append(recorded(job, i, RECORDED[i % 4], tool, world=i % 8 < 4))
    mixed = [*experts, *(row for row, _ in PLANTED)]
    found = built(tmp_path / "mixed.jsonl", mixed, sandbox)
    reasons = {r.id: r.reason for r in found.refused}
    print(Counter(reasons.values()), [(r.id, r.reason, r.detail) for r in found.refused if r.id[-2:].isdigit()])
    assert len(PLANTED) == 20
    assert {row["id"]: reasons.get(row["id"]) for row, _ in PLANTED} == {row["id"]: reason for row, reason in PLANTED}
    assert len(found.environments) >= 50
    assert len(found.environments) + len(found.refused) == 80


def only(tmp_path, row, shell=None):
    """The environment of one transcript, or (reason, detail)."""
    found = built(tmp_path / "one.jsonl", [row], shell)
    return found.environments[0] if found.environments else (found.refused[0].reason, found.refused[0].detail)


CUP = ("DELETE FROM items WHERE name = 'cup'", "ok, 1 rows changed")


def test_the_verifier_asks_for_what_changed_and_for_what_was_left_alone_in_any_order(tmp_path):
    other = "CREATE TABLE other (n INTEGER); INSERT INTO other VALUES (1), (2);"
    row = query("t", "remove the cup", CUP, database=f"{ITEMS}\n{other}")
    environment = only(tmp_path, row)
    assert environment.check == {
        "database": {
            "items": {"$exactly": {"columns": ["name", "price"], "rows": {"$rows": [["pen", 3], ["hat", 9]]}}},
            "other": {"$exactly": {"columns": ["n"], "rows": {"$rows": [[1], [2]]}}},
        }
    }
    end = {"items": {"columns": ["name", "price"], "rows": [["hat", 9], ["pen", 3]]}}
    assert reached(environment.check, {"database": {**end, "other": {"columns": ["n"], "rows": [[2], [1]]}}}) == (2, 2)
    assert reached(environment.check, {"database": {**end, "other": {"columns": ["n"], "rows": []}}}) == (1, 2)
    assert environment.effective == (0,) and environment.changed == ("items",)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("INSERT INTO items VALUES ('now', strftime('%s', 'now'))", "'now'"),
        ("INSERT INTO items VALUES ('r', abs(random()) % 100)", "random("),
        ("CREATE TABLE first AS SELECT name FROM items LIMIT 2", "the order"),
        ("UPDATE items SET price = length(date()) + substr(date(), 1, 4) WHERE name = 'pen'", "the time"),
    ],
    ids=["now", "random", "rows", "date"],
)
def test_what_depends_on_time_chance_or_order_is_unstable(tmp_path, sql, says):
    reason, detail = only(tmp_path, query("t", "change something there", (sql, None)))
    assert reason == "unstable" and says in detail


@pytest.mark.parametrize(
    "script",
    [
        "ATTACH DATABASE '{place}' AS other; CREATE TABLE other.t (a);",
        "CREATE TABLE t (a); INSERT INTO t VALUES (1); VACUUM INTO '{place}';",
        "PRAGMA temp_store_directory = '{place}'; CREATE TABLE t (a);",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n;",
    ],
    ids=["attach", "vacuum", "pragma", "endless"],
)
def test_a_recorded_database_reaches_no_file_and_does_not_run_for_ever(tmp_path, script):
    place = tmp_path / "written.db"
    row = query("t", "remove the cup", CUP, database=ITEMS + script.format(place=place))
    assert only(tmp_path, row)[0] == "bad_world"
    assert not place.exists()


def test_the_beginning_is_read_from_what_was_shown_before_it_changed(tmp_path):
    table = "name|price\npen|3\ncup|5\nhat|9"
    schema = ("SELECT sql FROM sqlite_schema", "sql\nCREATE TABLE items (name TEXT, price INTEGER)")
    row = query("t", "remove the cup", schema, ("SELECT * FROM items", table), CUP)
    given = only(tmp_path, row)
    del row["database"]
    seen = only(tmp_path, row)
    assert seen.check == given.check
    late = query("t", "remove the cup", CUP, ("SELECT * FROM items", "name|price\npen|3\nhat|9"))
    del late["database"]
    assert only(tmp_path, late)[0] == "no_initial_state"


def test_the_same_task_stays_once_and_solutions_that_disagree_are_no_task(tmp_path):
    rows = [
        query("a", "Remove the cup.", CUP),
        query("b", "remove  the cup", CUP),
        query("c", "Please remove the cup now", CUP),
        query("d", "raise all prices by one", ("UPDATE items SET price = price + 1", None)),
        query("e", "Raise all prices by one!", ("UPDATE items SET price = price * 2", None)),
        query("f", "organise items by colour", ("UPDATE items SET price = 1", None)),
        query("g", "organize items by color", ("UPDATE items SET price = 1", None)),
        query("h", "remove the hat", ("DELETE FROM items WHERE name = 'hat'", None)),
    ]
    found = built(tmp_path / "all.jsonl", rows)
    assert [e.id for e in found.environments] == ["a", "f", "h"]
    assert {r.id: r.reason for r in found.refused} == {
        "b": "duplicate",
        "c": "near_duplicate",
        "d": "contradictory",
        "e": "contradictory",
        "g": "duplicate",
    }


def test_of_solutions_that_disagree_the_majority_stays(tmp_path):
    end, other = "UPDATE items SET price = price + 1", "UPDATE items SET price = price * 2"
    rows = [query(name, "raise the prices", (sql, None)) for name, sql in (("x", other), ("y", end), ("z", end))]
    found = built(tmp_path / "all.jsonl", rows)
    assert [e.id for e in found.environments] == ["y"]
    assert {r.id: r.reason for r in found.refused} == {"x": "contradictory", "z": "duplicate"}


def test_solutions_that_need_no_look_are_trivial(tmp_path):
    assert only(tmp_path, query("t", "remove all items", ("DELETE FROM items", None)))[0] == "trivial"
    told = "run UPDATE items SET price = 4 WHERE name = 'cup' for me"
    assert only(tmp_path, query("t", told, ("UPDATE items SET price = 4 WHERE name = 'cup'", None)))[0] == "trivial"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "user", "content": "go"}], "id": "m"}, "no_actions"),
        ({"messages": "go"}, "unreadable"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "unreadable"),
        ({"actions": [{"browser": "click"}], "instruction": "go"}, "unknown_tool"),
        ({"actions": [{"shell": "ls", "query": "x"}], "instruction": "go"}, "unreadable"),
        ({"actions": [{"shell": "ls"}, {"query": "SELECT 1"}], "instruction": "go"}, "unknown_tool"),
        ({"actions": [{"shell": "ls"}], "instruction": "go", "files": {"a": 1}}, "bad_world"),
        ({"actions": [{"shell": "ls"}], "instruction": "go", "success": False}, "unsuccessful"),
        ({"response": "<think> <tool>query DELETE", "prompt": "go"}, "truncated"),
        ({"response": "<tool>query SELECT 1</tool>", "prompt": "go", "finish": "length"}, "truncated"),
        ({"response": "<tool>query SELECT 1</tool>", "prompt": "go", "term.completion": 0.5}, "unsuccessful"),
        ({"session": "no prompt here"}, "unreadable"),
        ("{", "unreadable"),
        ("[1]", "unreadable"),
        ({"actions": 5}, "unreadable"),
        ({"actions": [{"shell": {"command": 5}}], "instruction": "go"}, "unreadable"),
        ({"actions": [None], "instruction": "go"}, "unreadable"),
        ({"actions": [{"shell": "ls", "exit_code": "zero"}], "instruction": "go"}, "unreadable"),
        ({"actions": [{"shell": "ls", "output": 5}], "instruction": "go"}, "unreadable"),
        ({"actions": [{"shell": "ls"}], "instruction": "go", "root": 7}, "unreadable"),
        ({"actions": [{"shell": "echo a\0b"}], "instruction": "go"}, "unreadable"),
        ({"actions": [{"shell": "echo \ud800"}], "instruction": "go"}, "unreadable"),
        ({"actions": [{"shell": "ls"}], "instruction": "go \ud800"}, "unreadable"),
        ({"actions": [{"shell": "ls"}], "instruction": "go", "files": {"\ud800": ""}}, "unreadable"),
        ({"actions": [{"query": "SELECT 1"}], "instruction": "go", "database": "-- \ud800"}, "unreadable"),
        ({"actions": [{"shell": "echo " + "x" * 60_000}], "instruction": "go"}, "too_long"),
        ({"actions": [{"shell": "ls"}], "instruction": "go " * 3000}, "too_long"),
        ({"actions": [{"shell": "ls"}] * 301, "instruction": "go"}, "too_long"),
        ({"actions": [{"shell": "ls"}], "instruction": "go", "success": "no"}, "unreadable"),
        ({"actions": [{"shell": "ls"}], "instruction": "go", "finished": "false"}, "unreadable"),
        ({"response": 5, "prompt": "go"}, "unreadable"),
        ({"response": "<tool>get a</tool>", "prompt": "go", "task": 5}, "unreadable"),
        ({"response": "<tool>get a</tool>", "prompt": "go", "task": {"meta": {"store": {"a": 1}}}}, "bad_world"),
        ({"response": "<tool>get a</tool>", "prompt": "go", "term.completion": "no"}, "unreadable"),
        ({"response": "<tool>get a</tool>", "task": {"messages": [{"role": "user"}]}}, "no_instruction"),
        ({"messages": [{"role": "assistant", "tool_calls": "no"}]}, "unreadable"),
        ({"messages": [{"role": "assistant", "tool_calls": [None]}]}, "unreadable"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]}, "unreadable"),
    ],
    ids=range(38),
)
def test_what_is_no_transcript_is_told(tmp_path, row, reason):
    [transcript] = read_transcripts(write(tmp_path / "t.jsonl", [row]))
    assert transcript.problem is not None and transcript.problem[0] == reason
    assert "Error" not in transcript.problem[1]  # no exception of Python's own
    assert reason in REASONS


def test_what_one_transcript_breaks_costs_no_other(tmp_path, monkeypatch):
    """Whatever it is: here a judge that fails on one of them."""
    rows = [
        query(name, f"remove the {name}", (f"DELETE FROM items WHERE name = '{name}'", None)) for name in ("cup", "pen")
    ]

    def judge(check, state):
        if ["pen", 3] not in state["database"]["items"]["rows"]:
            raise RecursionError("too deep")
        return reached(check, state)

    told = []
    found = build(
        read_transcripts(write(tmp_path / "t.jsonl", rows)),
        judge=judge,
        shell=None,
        progress=lambda done, of: told.append((done, of)),
    )
    assert told == [(1, 2), (2, 2)]
    assert [e.id for e in found.environments] + [r.id for r in found.refused] == ["cup", "pen"]
    assert (found.refused[0].reason, found.refused[0].detail) == (
        "unverifiable",
        "the replay failed with RecursionError: too deep",
    )


def test_a_replay_has_a_limit_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("components.environments.from_trajectories.plays._MOST_S", -1)
    assert only(tmp_path, query("t", "remove the cup", CUP)) == ("hangs", "its first 0 of 1 calls took more than -1 s")


def test_a_transaction_counts_when_it_is_committed(tmp_path):
    steps = [(sql, None) for sql in ("BEGIN", CUP[0], "DELETE FROM items WHERE name = 'hat'", "COMMIT")]
    environment = only(tmp_path, query("t", "remove cup and hat", *steps))
    table = {"columns": ["name", "price"], "rows": {"$rows": [["pen", 3]]}}
    assert environment.check == {"database": {"items": {"$exactly": table}}}
    assert environment.effective == (3,)
    assert only(tmp_path, query("t", "remove cup and hat", *steps[:3]))[0] == "no_effect"


@pytest.mark.parametrize(
    "wrong",
    [
        ("UPDATE items SET price = 4 WHERE name = 'pen'", "ALTER TABLE items RENAME COLUMN price TO cost"),
        ("UPDATE items SET price = 4 WHERE name = 'pen'", "DROP VIEW cheap"),
        ("UPDATE items SET price = 4 WHERE name = 'pen'", "DROP INDEX by_name"),
        ("UPDATE items SET price = 4 WHERE name = 'pen'", "UPDATE sqlites SET a = 2"),
        ("UPDATE items SET price = '4' WHERE name = 'pen'",),
        ("UPDATE items SET price = 4 WHERE name = 'pen'", "UPDATE raw SET b = '00ff'"),
    ],
    ids=["column", "view", "index", "wildcard", "text", "blob"],
)
def test_a_database_that_is_not_as_it_should_be_does_not_pass(tmp_path, wrong):
    more = "CREATE VIEW cheap AS SELECT name FROM items; CREATE UNIQUE INDEX by_name ON items (name); "
    world = f"{ITEMS}\n{more}CREATE TABLE sqlites (a); INSERT INTO sqlites VALUES (1); CREATE TABLE raw (b); "
    world = (world + "INSERT INTO raw VALUES (x'00ff')").replace("price INTEGER", "price")
    solution = "UPDATE items SET price = 4 WHERE name = 'pen'"
    environment = only(tmp_path, query("t", "raise the pen by one", (solution, None), database=world))

    def end(*statements):
        session = Database().open(Task("t", (), None, "state", meta={"database": world}))
        for statement in statements:
            session.query(statement)
        met, count = reached(environment.check, {"database": session.state()})
        return met == count

    assert end(solution)
    assert not end(*wrong)


def test_what_is_no_transcript_file_is_one_refusal(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "b.jsonl").write_bytes(b'{"x": "' + b"y" * (11 << 20) + b'"}\n\n{"actions": 5}\n')
    found = read_transcripts(tmp_path)
    assert [(t.where.rpartition("/")[2], t.problem[0]) for t in found] == [
        ("a.parquet:1", "unreadable"),
        ("b.jsonl:1", "unreadable"),
        ("b.jsonl:3", "unreadable"),
    ]


@pytest.mark.parametrize(
    "script", ["BEGIN; INSERT INTO items VALUES ('x', 1)", "SAVEPOINT s"], ids=["begin", "savepoint"]
)
def test_a_beginning_in_the_middle_of_a_transaction_is_none(tmp_path, script):
    reason, detail = only(tmp_path, query("t", "remove the cup", CUP, database=f"{ITEMS}\n{script}"))
    assert (reason, detail) == ("bad_world", "the statements leave a transaction open")


def test_a_beginning_that_depends_on_the_time_is_unstable(tmp_path):
    world = f"{ITEMS}\nCREATE TABLE log AS SELECT datetime('now') AS at"
    assert only(tmp_path, query("t", "remove the cup", CUP, database=world)) == ("unstable", "log depends on the time")
    world = f"{ITEMS}\nCREATE TABLE log (at DEFAULT current_timestamp)"
    row = query("t", "remove the cup", CUP, database=world)
    assert only(tmp_path, row) == ("unstable", "the beginning uses current_timestamp")


def test_what_could_be_written_in_other_words_is_not_compared(tmp_path):
    row = query("t", "show what is cheap", ("CREATE VIEW cheap AS SELECT name FROM items WHERE price < 4", None))
    reason, detail = only(tmp_path, row)
    assert reason == "unverifiable" and "makes a view" in detail


def test_what_is_replayed_reaches_no_other_database(tmp_path):
    place = tmp_path / "other.db"
    row = query("t", "remove the cup", CUP, (f"ATTACH '{place}' AS x", None), ("CREATE TABLE x.y (a)", None))
    assert only(tmp_path, row)[0] == "not_reproduced"
    assert not place.exists()


def test_a_chat_goes_wrong_if_the_user_speaks_again(tmp_path):
    call = {"id": "1", "function": {"name": "bash", "arguments": {"command": "ls"}}}
    turns = [("user", "go"), ("assistant", ""), ("tool", "a"), ("user", "and now sort it")]
    messages = [{"role": role, "content": text} for role, text in turns]
    messages[1]["tool_calls"] = [call]
    [transcript] = read_transcripts(write(tmp_path / "t.jsonl", [{"messages": messages}]))
    assert transcript.problem and transcript.problem[0] == "several_instructions"


def test_sessions_are_read_with_their_prompts_continuations_and_escapes(tmp_path):
    text = (
        "# Sort the names.\n\x1b[32mme@host:~/dir$\x1b[0m cat a\r\nb\na\n"
        "me@host:~/dir$ cat <<'EOF' > c\n> it's\n> EOF\nme@host:~/dir$ sort a > b\nme@host:~/dir$ exit\n"
    )
    (tmp_path / "one.session").write_text(text)
    [transcript] = read_transcripts(tmp_path)
    assert transcript.problem is None
    assert transcript.instruction == "Sort the names."
    assert [(a.text, a.output) for a in transcript.actions] == [
        ("cat a", "b\na"),
        ("cat <<'EOF' > c\nit's\nEOF", ""),
        ("sort a > b", ""),
    ]


def test_sqlite_sessions_are_database_transcripts(tmp_path):
    (tmp_path / "a.session").write_text(
        "# remove the cup\nsqlite> .schema\nCREATE TABLE items (name TEXT, price INTEGER);\n"
        "sqlite> SELECT *\n   ...> FROM items;\npen|3\ncup|5\n"
        "sqlite> DELETE FROM items WHERE name = 'cup';\nsqlite> .quit\n"
    )
    (tmp_path / "b.session").write_text(
        '# add a fan at 7\n$ sqlite3 s.db "CREATE TABLE items (name TEXT, price INTEGER)"\n'
        "$ sqlite3 s.db \"INSERT INTO items VALUES ('fan', 7)\"\n$ sqlite3 s.db 'SELECT * FROM items'\nfan|7\n$ exit\n"
    )
    found = build(read_transcripts(tmp_path), judge=reached, shell=None)
    assert found.refused == []
    ends = [e.check["database"]["items"]["$exactly"]["rows"] for e in found.environments]
    assert ends == [{"$rows": [["pen", 3]]}, {"$rows": [["fan", 7]]}]


def test_rollouts_find_their_worlds_in_the_tasks(tmp_path):
    response = f"<think> <tool>query {CUP[0]}</tool><result>{CUP[1]}</result></think><answer>done</answer>"
    row = {"task_id": "t7", "prompt": "remove the cup", "response": response, "finish": "stop", "term.completion": 1.0}
    tasks = {"t7": {"meta": {"database": ITEMS}, "messages": [{"role": "user", "content": "remove the cup"}]}}
    found = build(read_transcripts(write(tmp_path / "r.jsonl", [row]), "auto", tasks), judge=reached, shell=None)
    assert [e.world for e in found.environments] == [{"database": ITEMS}]


def test_paths_below_the_recorded_directory_are_paths_of_the_workspace(tmp_path):
    row = shell("t", "Sort a.txt.", ("pwd", "/home/me/proj"), "sort /home/me/proj/a.txt > /home/me/proj/b.txt")
    [transcript] = read_transcripts(write(tmp_path / "t.jsonl", [row]))
    assert transcript.actions[1].text == "sort /workspace/a.txt > /workspace/b.txt"
