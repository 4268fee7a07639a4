"""The shell: real commands on files of the episode's own, and nothing else in reach."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from components.environments.agent import ToolEnvironment
from components.environments.tool_loop import ToolError
from components.environments.tools.host import Broken
from components.environments.tools.shell import Shell, shell_check
from components.environments.tools.workspace import Workspace
from components.types import Message, Task


def task(**files):
    return Task("t", (Message("user", "go"),), None, "exact", meta={"files": files})


@pytest.fixture(scope="module")
def shell():
    if problems := shell_check({}):
        pytest.skip(problems[0])
    shell = Shell(seconds=60.0)
    try:
        shell.run(Workspace.of({}), "true")
    except Broken as error:
        pytest.skip(f"no shell here: {error}")
    return shell


def test_files_and_the_working_directory_stay_from_call_to_call(shell):
    session = shell.open(task(**{"notes/a.txt": "one\ntwo\n", "empty/": ""}))
    assert session.shell("grep -c . notes/a.txt; ls") == "2\nempty\nnotes"
    assert session.shell("cd notes && sort -r a.txt > b.txt") == "(no output)"
    assert session.shell("pwd; cat b.txt; exit 3") == "/workspace/notes\ntwo\none\nexit code 3"
    assert session.state() == {
        "files": {"empty/": "", "notes/": "", "notes/a.txt": "one\ntwo\n", "notes/b.txt": "two\none\n"},
        "commands": ["grep -c . notes/a.txt; ls", "cd notes && sort -r a.txt > b.txt", "pwd; cat b.txt; exit 3"],
    }


def test_an_episode_can_be_continued_from_any_point(shell):
    start, _, _ = shell.run(Workspace.of({"a": "1"}), "echo 2 > a")
    left, _, _ = shell.run(start, "echo left > b")
    right, _, _ = shell.run(start, "rm a")
    assert left.files() == {"a": "2\n", "b": "left\n"}
    assert right.files() == {}
    assert start.files() == {"a": "2\n"}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("cat /etc/passwd", "No such file"),
        ("ls /work /root /home", "cannot access"),
        ("ls /proc/1", "cannot access"),
        ("echo x > /usr/x", "Read-only file system"),
        ("exec 3<>/dev/tcp/127.0.0.1/80", "cannot open|cannot create"),
        ("bash -c 'exec 3<>/dev/tcp/127.0.0.1/80'", "Operation not permitted"),
        ("unshare -r true", "Operation not permitted"),
        ("for i in 1 2 3 4 5 6 7 8 9; do for j in 1 2 3 4; do sleep 9 & done; done", "Cannot fork"),
        ("head -c 40000000 /dev/zero > big", "No space left|File too large|File size limit"),
        ("env | grep -v -e PATH -e HOME -e LANG -e TZ -e PWD -e SHLVL -e ^_", "exit code 1"),
    ],
    ids=range(10),
)
def test_nothing_else_is_in_reach(shell, command, says):
    assert re.search(says, shell.open(task()).shell(command))


@pytest.mark.parametrize("command", ["kill -9 $PPID", "kill -9 -1; true"])
def test_a_command_that_ends_its_shell_leaves_the_files_as_they_were(shell, command):
    session = shell.open(task(a="1"))
    assert "the files are as before" in session.shell(f"rm a; {command}") or session.state()["files"] in (
        {},
        {"a": "1"},
    )
    assert session.shell("echo well").startswith("well")


def test_what_runs_on_in_the_background_ends_with_the_command(shell):
    session = shell.open(task())
    assert session.shell("(sleep 1000; echo late > late) & echo soon") == "soon"
    assert session.state()["files"] == {}


def test_a_flood_of_output_is_read_and_dropped(shell):
    said = shell.open(task()).shell("head -c 50000000 /dev/zero | tr '\\0' x")
    assert said == "x" * shell.output_bytes


def test_a_command_without_end_times_the_episode_out(shell):
    hasty = Shell(seconds=1.0)
    with pytest.raises(TimeoutError, match="did not end within 1 s"):
        hasty.open(task()).shell("sleep 1000")


def test_paths_outside_the_workspace_are_refused():
    for path in ("/etc/x", "../x", "a/../../x", ""):
        with pytest.raises(ValueError, match="does not lie in the workspace"):
            Workspace.of({path: ""})
    for path in ("a\0b", "n" * 256, "d/" * 600 + "x"):
        with pytest.raises(ValueError, match="no name that a file can have"):
            Workspace.of({path: ""})
    with pytest.raises(ValueError, match=r"'a/b' would lie in 'a', which is a file"):
        Workspace.of({"a": "", "a/b": ""})


def test_what_is_no_text_or_too_long_has_a_digest(shell):
    workspace, _, _ = shell.run(Workspace.of({}), "printf 'a\\377' > raw; ln -s raw link; seq 9999 > long")
    digests = {"raw": b"a\377", "long": b"".join(b"%d\n" % i for i in range(1, 10_000))}
    expected = {name: {"sha256": hashlib.sha256(data).hexdigest()} for name, data in digests.items()}
    assert workspace.files() == {"link": {"link": "raw"}, **expected}


def test_every_kind_of_file_is_seen_under_a_name_that_can_be_written_down(shell):
    command = "ln a b; touch ..c; bash -c \"touch \\$'\\xff'\"; mkdir -p d"
    workspace, said, code = shell.run(Workspace.of({"a": "1"}), command)
    assert (said, code) == ("", 0)
    assert workspace.files() == {"a": "1", "b": "1", "..c": "", "\\xff": "", "d/": ""}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("echo a\0b", "a NUL"),
        ("echo \ud800", "half of a surrogate pair"),
        ("echo " + "x" * 200_000, "more than 100,000"),
    ],
    ids=["nul", "surrogate", "long"],
)
def test_a_command_that_no_shell_takes_is_the_policys_to_read(shell, command, says):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ToolError, match=says):
        shell.open(task(a="1")).shell(command)
    assert len(os.listdir("/proc/self/fd")) == before


CROWDED = """
import os
from components.environments.tools.shell import Shell, Workspace
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
pipe, made = os.pipe, []
def crowded():
    made.append(1)
    if len(made) == 3:
        os.close(3), os.close(4)
    return pipe()
os.pipe = crowded
after, said, code = Shell(seconds=120).run(Workspace.of({"a": "1"}), "echo 2 > b")
print(after.files(), said, code)
"""


def test_descriptors_that_others_give_back_meanwhile_are_not_mixed_up(shell):
    done = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, cwd=Path.cwd())
    assert done.stdout == "{'a': '1', 'b': '2\\n'}  0\n", done.stderr


def test_the_environment_runs_it_beside_the_engine(shell):
    environment = ToolEnvironment(tools=[shell])
    assert environment.asynchronous
    step = environment.reset(task(a="1")).step(
        '<tool_call>{"name": "shell", "arguments": {"command": "cat a"}}</tool_call>'
    )
    assert step.observation == ("1",)
