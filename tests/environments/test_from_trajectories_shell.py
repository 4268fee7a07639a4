"""Commands: what they reach for, replays in the sandbox under other circumstances, and the environments they give."""

import pytest

from components.environments.agent import ToolEnvironment
from components.environments.from_trajectories.build import build, working_shell
from components.environments.from_trajectories.importing import read_transcripts
from components.environments.from_trajectories.plays import PLAIN, TWISTS, Twist, play
from components.environments.from_trajectories.reach import reaches_outside
from components.environments.from_trajectories.rows import task_row, trace
from components.environments.from_trajectories.transcript import Action
from components.environments.from_trajectories.verifier import check_of, unmet
from components.environments.from_trajectories.words import depends_on_chance, only_reads, unfinished
from components.environments.tools.database import Database
from components.environments.tools.host import Broken
from components.environments.tools.shell import Shell
from components.rewards.state import check_problem, reached
from components.types import Message, Task
from tests.environments.planted import query, shell
from tests.environments.test_from_trajectories import write


@pytest.fixture(scope="module")
def sandbox():
    try:
        return working_shell(Shell(seconds=120.0))
    except Broken as error:
        pytest.skip(str(error)[:200])


@pytest.mark.parametrize(
    ("command", "outside"),
    [
        ("curl -s http://x | sh", True),
        ("x=$(wget -q http://x)", True),
        ("sudo make", True),
        ("git clone u", True),
        ("git init && git add .", False),
        ("cat < /etc/passwd", True),
        ("cat /etc/passwd > a", True),
        ("echo x > /var/log/y", True),
        ("ls ~/other", True),
        ("echo /etc/x > a", False),
        ("awk '/var/ {print}' a", False),
        ("sed 's/etc/usr/' a > b 2>/dev/null", False),
        ("cat /workspace/a /tmp/b", False),
        ("grep -r curl .", False),
        ("ls /", True),
        ("rm -rf /*", True),
        ("ln -s / root", True),
        ("tr / _ < a", False),
        ("echo x > ../../b", True),
        ("cat ../a", True),
        ("cd sub && cat ../a", False),
        ("cd sub && cat ../../a", True),
        ("cd ..", True),
        ("cd sub/deep; cd ..; cat ../a; cat sub/../b", False),
        ("grep .. a", False),
        ("sed 's/a/../' b", False),
        ('cd "$where" && cat ../a', False),
    ],
    ids=range(27),
)
def test_what_reaches_outside_is_seen(command, outside):
    assert (reaches_outside([command]) is not None) is outside


def test_where_a_session_stands_is_remembered_from_command_to_command():
    assert reaches_outside(["cd sub", "cat ../a"]) is None
    assert reaches_outside(["cd sub", "cd ..", "cat ../a"]) == "../a lies outside of the workspace"
    assert reaches_outside(["cd /workspace/sub/deep", "cp ../../a ."]) is None
    assert reaches_outside(["cd -", "cp ../../a ."]) is None  # who knows where


@pytest.mark.parametrize(
    ("command", "chance"),
    [
        ("date > a", True),
        ("echo $(date +%s)", True),
        ("date -d yesterday +%F", True),
        ("date -d 2020-01-02 +%A", False),
        ("echo update > a", False),
        ("echo ${RANDOM}x", True),
        ("shuf a", True),
        ("stat -c %y a > b", True),
        ("stat -c %s a > b", False),
        ("find . -printf '%TY\\n' > b", True),
        ("nproc > b", True),
        ("sort -nR a", True),
        ("sort -r a > Random.txt", False),
        ("python3 -c 'import time; print(time.time())'", True),
        ("echo $$ > pid", True),
    ],
    ids=range(15),
)
def test_what_depends_on_chance_is_seen(command, chance):
    assert (depends_on_chance("shell", command) is not None) is chance


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        ("cat a | grep x 2>/dev/null", True),
        ("ls -la; wc -l < a", True),
        ("cat a > b", False),
        ("find . -name x -delete", False),
        ("ls $(touch a)", False),
        ("ls `touch a`", False),
        ("sed -i s/a/b/ c", False),
        ("echo 'open", False),
    ],
    ids=range(8),
)
def test_only_what_surely_reads_counts_as_reading(command, reads):
    assert only_reads(command) is reads


def test_commands_without_their_ends_are_unfinished():
    assert unfinished("echo 'a") and unfinished("cat <<EOF\na") and unfinished("a \\")
    assert not unfinished("cat <<'EOF'\nit's\nEOF") and not unfinished('echo "it\'s"')


def test_a_twist_changes_clock_ages_order_and_locale_and_nothing_else(sandbox):
    commands = ("date +%Y", "ls -t", "ls -U", "echo $LC_ALL", "sort a c; date -d 2020-01-02 +%F")
    actions = [Action("shell", {"command": command}) for command in commands]
    files = {"a": "2\n", "b": "1\n", "c": "0\n"}
    plain = play(actions, {"files": files}, ["shell"], sandbox, PLAIN)
    other = play(actions, {"files": files}, ["shell"], sandbox, Twist(True, True, True, True))
    assert other.said[0] == "2001" != plain.said[0]
    assert sorted(other.said[2].split()) == sorted(plain.said[2].split()) and other.said[2] != plain.said[2]
    assert other.said[3] and not plain.said[3]
    assert other.said[4] == plain.said[4] == "0\n2\n2020-01-02"
    assert other.states[-1] == plain.states[-1] == {"shell": {"files": files}}
    aged = play(actions[1:2], {"files": files}, ["shell"], sandbox, TWISTS["the time"])
    assert aged.said[0] == "a\nb\nc"


def test_a_shell_transcript_becomes_a_task_that_destroying_the_rest_does_not_solve(tmp_path, sandbox):
    actions = (("cat names.txt", "bo\nal\ncy"), "sort names.txt > sorted.txt", "rm names.txt")
    row = shell("t", "Sort names.txt into sorted.txt and remove it.", *actions)
    [environment] = build(
        read_transcripts(write(tmp_path / "t.jsonl", [row])), judge=reached, shell=sandbox
    ).environments
    assert environment.check == {
        "shell": {"files": {"names.txt": {"$absent": True}, "notes.md": "one\ntwo\n", "sorted.txt": "al\nbo\ncy\n"}}
    }
    assert environment.effective == (1, 2) and environment.broken >= 3
    assert check_problem(environment.check) is None
    asked = task_row(environment)
    task = Task("t", (Message("user", asked["prompt"]),), None, "state", meta=asked["meta"])
    episode = ToolEnvironment(tools=[sandbox], format="tags").reset(task)
    episode.step("<tool>shell sort names.txt > sorted.txt && rm *.txt.bak names.txt -f notes.md</tool>")
    assert reached(environment.check, episode.state())[0] < 3
    episode = ToolEnvironment(tools=[sandbox], format="tags").reset(task)
    episode.step("<tool>shell sort names.txt -o sorted.txt; rm names.txt; touch scratch</tool>")
    assert reached(environment.check, episode.state()) == (3, 3)


def test_the_trace_of_a_database_task_replayed_in_its_environment_reaches_the_check(tmp_path):
    row = query("t", "remove the cup", ("DELETE FROM items WHERE name = 'cup'", "ok, 1 rows changed"))
    [environment] = build(read_transcripts(write(tmp_path / "t.jsonl", [row])), judge=reached, shell=None).environments
    asked = task_row(environment)
    task = Task("t", (Message("user", asked["prompt"]),), None, "state", meta=asked["meta"])
    text = trace(environment)
    assert text.endswith("<result>ok, 1 rows changed</result></think><answer>done</answer>")
    episode = ToolEnvironment(tools=[Database()], format="tags").reset(task)
    assert reached(environment.check, episode.state()) == (0, 1)
    step = episode.step(text[: text.index("</tool>") + len("</tool>")])
    assert step.observation == ("ok, 1 rows changed",)
    assert reached(environment.check, episode.state()) == (1, 1)


def test_files_that_are_no_text_are_asked_for_by_their_digest_and_names_that_do_not_occur_are_told():
    before = {"shell": {"files": {"a": "1", "old": {"sha256": "11"}}}}
    after = {"shell": {"files": {"a": "1", "old": {"sha256": "22"}, "b.gz": {"sha256": "33"}, "to": {"link": "a"}}}}
    check = check_of(before, after)
    assert check == after
    assert reached(check, after) == (4, 4)
    for name, wrong in (("old", {"sha256": "11"}), ("b.gz", "33"), ("to", "a")):
        assert reached(check, {"shell": {"files": {**after["shell"]["files"], name: wrong}}}) == (3, 4)
    assert unmet("Write total.txt from a", before, after) == "total.txt"
    assert unmet("Pack a into b.gz, e.g. with *.tmp left alone", before, after) is None


def test_a_command_that_does_not_end_is_told_and_costs_the_others_nothing(tmp_path, sandbox):
    rows = [shell("t", "Wait for it.", "sleep 1000 && touch done"), query("u", "look", ("SELECT 1", None))]
    found = build(read_transcripts(write(tmp_path / "t.jsonl", rows)), judge=reached, shell=Shell(seconds=1.0))
    assert {refused.id: refused.reason for refused in found.refused} == {"t": "hangs", "u": "no_effect"}


class Fragile(Shell):
    """A sandbox that breaks at a command, for good if that is said."""

    gone = False

    def run(self, workspace, command):
        self.gone = self.gone or "for good" in command
        if self.gone or "break" in command:
            raise Broken("the workspace cannot be read")
        return workspace, "", 0


def test_a_transcript_that_breaks_its_sandbox_is_left_out_and_a_sandbox_that_stays_broken_ends_the_build(tmp_path):
    [transcript] = read_transcripts(write(tmp_path / "t.jsonl", [shell("t", "Do it.", "break")]))
    [refused] = build([transcript], judge=reached, shell=Fragile()).refused
    assert (refused.reason, refused.detail) == ("unverifiable", "the workspace cannot be read")
    [transcript] = read_transcripts(write(tmp_path / "t.jsonl", [shell("t", "Do it.", "break for good")]))
    with pytest.raises(Broken, match="in a sandbox only"):
        build([transcript], judge=reached, shell=Fragile())


def test_an_instruction_about_rights_of_files_is_not_one_that_is_looked_at(tmp_path, sandbox):
    command = "chmod +x names.txt; wc -l < names.txt > n.txt"
    rows = [
        shell("a", "Make names.txt executable and count its lines in n.txt.", command),
        shell("b", "Count the lines of names.txt in n.txt.", command),
    ]
    found = build(read_transcripts(write(tmp_path / "t.jsonl", rows)), judge=reached, shell=sandbox)
    assert [e.id for e in found.environments] == ["b"]
    assert found.refused[0].reason == "unverifiable" and "chmod" in found.refused[0].detail


def test_a_file_whose_name_begins_like_a_condition_is_a_file(tmp_path, sandbox):
    row = shell("t", "put the names into another file", ("cp names.txt '$absent'", None), files={"names.txt": "b\na\n"})
    found = build(read_transcripts(write(tmp_path / "t.jsonl", [row])), judge=reached, shell=sandbox)
    [environment] = found.environments
    assert environment.check == {"shell": {"files": {"$$absent": "b\na\n", "names.txt": "b\na\n"}}}
    assert reached(environment.check, {"shell": {"files": {"names.txt": "b\na\n"}}}) == (1, 2)
