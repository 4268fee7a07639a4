"""``r1flow envs``: record, build, list and check; what is refused, and how it is said."""

import json

import pytest

from components.artifacts import read_jsonl, write_jsonl
from flows.cli import main


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A folder of environments made of a dozen database transcripts."""
    monkeypatch.chdir(tmp_path)
    assert main(["envs", "record", "--to", "t.jsonl", "-n", "12", "--families", "database", "--seed", "4"]) == 0
    assert main(["envs", "build", "t.jsonl", "--to", "envs", "--jobs", "1"]) == 0
    return tmp_path / "envs"


def test_what_is_built_is_a_task_set_like_any_other(built, capsys):
    rows = list(read_jsonl(built / "tasks.jsonl"))
    assert len(rows) == 12
    assert all(set(row["meta"]) >= {"database", "tools", "check", "steps"} for row in rows)
    capsys.readouterr()
    assert main(["data", "check", str(built / "tasks.jsonl")]) == 0
    told = capsys.readouterr().out
    assert "verifier  state 12" in told and "not used" not in told
    report = json.loads((built / "report.json").read_text())
    assert (report["transcripts"], report["environments"], report["rejected"]) == (12, 12, {})


def test_a_folder_is_listed_and_checked(built, capsys):
    assert main(["envs", "ls", str(built)]) == 0
    told = capsys.readouterr().out
    assert "12 environments of 12 transcripts" in told
    assert main(["envs", "check", str(built)]) == 0
    assert "12 of 12 tasks are as they should be" in capsys.readouterr().out


def test_a_task_whose_solution_fails_or_that_asks_for_nothing_is_named(built, capsys):
    rows = list(read_jsonl(built / "tasks.jsonl"))
    rows[0]["meta"]["check"] = {"database": {"nowhere": {"rows": {"$rows": []}}}}
    rows[1]["meta"]["check"] = {"database": {"nowhere": {"$absent": True}}}
    write_jsonl(built / "tasks.jsonl", rows)
    assert main(["envs", "check", str(built)]) == 1
    told = capsys.readouterr().out
    assert f"{rows[0]['id']}: its solution does not pass" in told
    assert f"{rows[1]['id']}: doing nothing passes" in told
    assert "10 of 12" in told


def test_the_share_of_traces_is_chosen(built):
    assert main(["envs", "build", "t.jsonl", "--to", "envs", "--replace", "--traces", "0"]) == 0
    assert not any("trace" in row for row in read_jsonl(built / "tasks.jsonl"))


def test_where_no_sandbox_works_no_recorded_command_runs(tmp_path, monkeypatch, capsys):
    row = {"instruction": "make a file", "actions": [{"shell": f"touch {tmp_path}/ran; touch made"}]}
    write_jsonl(tmp_path / "t.jsonl", [row])
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["envs", "build", str(tmp_path / "t.jsonl"), "--to", str(tmp_path / "envs")]) == 2
    told = capsys.readouterr().err
    assert "run in a sandbox only" in told and "Fix: install bubblewrap" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["build"], "needs the transcripts"),
        (["build", "t.jsonl"], "needs a folder"),
        (["build", "none.jsonl", "--to", "new"], "none.jsonl: no such file"),
        (["build", "t.jsonl", "--to", "envs"], "is not empty"),
        (["build", "t.jsonl", "--to", "t.jsonl"], "is a file"),
        (["build", "t.jsonl", "--to", "new", "--format", "cast"], "no such form"),
        (["build", "t.jsonl", "--to", "new", "--tasks", "none"], "no such file"),
        (["build", "t.jsonl", "--to", "new", "--replays", "0"], "at least 1"),
        (["build", "t.jsonl", "--to", "new", "--traces", "2"], "between 0 and 1"),
        (["check", "nowhere"], "not a folder of environments"),
        (["ls", "."], "not a folder of environments"),
        (["record"], "is needed"),
        (["record", "--to", "x.jsonl", "--families", "cooking"], "no such jobs"),
    ],
    ids=range(13),
)
def test_what_cannot_work_is_said_in_one_line_with_its_remedy(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "t.jsonl", [{"instruction": "x", "actions": []}])
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/mine.txt").write_text("mine")
    assert main(["envs", *arguments]) == 2
    told = capsys.readouterr().err
    assert says in told and "Fix: " in told and "Traceback" not in told
    assert (tmp_path / "envs/mine.txt").read_text() == "mine"


def test_a_pipeline_takes_the_tasks_if_it_judges_what_is_left_at_the_end(built, capsys):
    capsys.readouterr()
    path = f"data.path={built / 'tasks.jsonl'}"
    assert main(["plan", "pipeline=agent_tasks", path, "artifacts=a"]) in (0, 2)
    assert "no verifier" not in capsys.readouterr().err
    assert main(["plan", "pipeline=r1_zero", "data=jsonl", path, "artifacts=a"]) == 2
    assert "no verifier 'state'" in (told := capsys.readouterr().err) and "rewards.agent.Success" in told


def test_an_environment_must_have_the_tools_of_the_tasks_and_read_the_calls_of_their_traces(built, capsys):
    def told(*choice):
        capsys.readouterr()
        main(["plan", "pipeline=agent_tasks", f"data.path={built / 'tasks.jsonl'}", "artifacts=a", *choice])
        return capsys.readouterr().err

    assert "environment" not in told()
    lacks = told("environment=shell")
    assert "no tool 'query', which 12 tasks" in lacks and "Fix: environment=agent_tags" in lacks
    unread = told("environment=agent")
    assert "traces of the data call tools in tags" in unread and "got 'hermes'" in unread
    assert "environment.format=tags" in unread
    assert "environment" not in told("environment=agent", "environment.format=tags")
    assert main(["envs", "build", "t.jsonl", "--to", "envs", "--replace", "--traces", "0"]) == 0
    assert "call tools in tags" not in told("environment=agent")


def test_tasks_of_a_shell_are_told_the_environment_that_has_one_beside_the_rest(built, capsys):
    rows = list(read_jsonl(built / "tasks.jsonl"))
    rows[0]["meta"]["tools"] = ["shell"]
    write_jsonl(built / "tasks.jsonl", rows)
    arguments = ["plan", "pipeline=agent_tasks", f"data.path={built / 'tasks.jsonl'}", "artifacts=a"]
    assert main(arguments) == 2
    assert "no tool 'shell', which 1 tasks" in (told := capsys.readouterr().err) and "agent_tags_shell" in told
    main([*arguments, "environment=agent_tags_shell"])
    assert "no tool" not in capsys.readouterr().err


def test_of_one_it_is_said_in_the_singular(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["envs", "record", "--to", "t.jsonl", "-n", "1", "--families", "database"]) == 0
    assert main(["envs", "build", "t.jsonl", "--to", "envs"]) == 0
    told = capsys.readouterr().out
    assert "1 transcript, 1 environment\n" in told and "run pipeline=agent_tasks data.path=envs/tasks.jsonl\n" in told


def test_a_tool_that_is_none_is_told_in_a_line_before_anything_runs(built, capsys, monkeypatch):
    (built.parent / "own_tools.py").write_text("def look(a) -> str:\n    return a\n")
    monkeypatch.syspath_prepend(str(built.parent))
    tools = "environment.tools=[{_target_: own_tools.look, _partial_: true}]"
    arguments = [
        "plan",
        "pipeline=agent_tasks",
        f"data.path={built / 'tasks.jsonl'}",
        "artifacts=a",
        "allow=[own_tools]",
    ]
    assert main([*arguments, tools]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "environment" in line]
    assert "tool own_tools.look: parameter 'a'" in line and "Fix: " in line
