"""The environment server: same answers as in this process, each thing done once, each episode for itself."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from remote_cases import Echo

from components.environments.remote.client import RemoteEnvironment, remote_environment_check
from components.environments.remote.hosting import Hosting, Refused
from components.environments.remote.line import EpisodeFailed, Line, Unreachable
from components.environments.remote.server import EnvironmentServer
from components.types import Message, Task

TOKEN = "a-token-of-tests"


def task(name="t", **meta):
    return Task(name, (Message("user", "go"),), None, "exact", meta=meta)


def until(condition):
    """Wait for what another thread or process is about to do; the limit is for a machine that is very busy."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen")


@pytest.fixture
def serving(monkeypatch):
    """Start servers; (environment, **settings of the hosting) -> (server, client)."""
    monkeypatch.setattr("components.environments.remote.client._LOOK_S", 60.0)
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", TOKEN)
    servers = []

    def start(environment, **settings):
        server = EnvironmentServer(Hosting(environment, **settings), token=TOKEN, digest="d1")
        thread = threading.Thread(target=server.serve)
        thread.start()
        servers.append((server, thread))
        return server, RemoteEnvironment(url=server.url, retry_seconds=0.0)

    yield start
    for server, thread in servers:
        server.close()
        thread.join()


def test_an_episode_over_http_is_the_episode_here(serving):
    _, remote = serving(Echo())
    here, there = Echo().reset(task()), remote.reset(task())
    for text in ("a", "two", "nothing", "line\nbreak \x00 \ud83d", *"bcdef"):
        assert there.step(text) == here.step(text)
    assert there.state() == here.state()
    there.close()


def test_what_an_engine_asks_of_an_environment_is_the_servers(serving):
    _, remote = serving(Echo(seconds=7.0))
    assert (remote.stop, remote.wrapper, remote.chat, remote.inspects) == (
        ("</tool>",), ("<result>", "</result>"), False, True,
    )  # fmt: skip
    assert (remote.overflow, remote.reserve, remote.speaker, remote.asynchronous) == ("shorten", 3, "tool", True)
    assert remote.seconds > 7.0 + 15.0  # the server says first what ran late
    assert remote.schemas(task("x"))[0]["function"]["parameters"] == {"of": "x"}
    assert remote.manual(task("x")) == "call echo"


def test_episodes_know_nothing_of_each_other_and_close_once(serving):
    environment = Echo()
    server, remote = serving(environment)
    one, two = remote.reset(task("one")), remote.reset(task("two"))
    assert [one.step("a").observation, two.step("b").observation, one.step("c").observation] == ["1:a", "1:b", "2:c"]
    one.close()
    one.close()
    until(lambda: environment.closed == ["one"])
    assert two.step("d").observation == "2:d"
    with pytest.raises(EpisodeFailed, match="no such episode"):
        one.step("e")
    assert len(server.hosting) == 1


def test_a_request_that_is_sent_again_is_answered_and_not_done_again(serving):
    environment = Echo()
    _, remote = serving(environment)
    line = Line(remote, 60.0)
    given = {"task": task().to_json()}
    assert line.ask("PUT", "/episodes/e", given) == line.ask("PUT", "/episodes/e", given) == {}
    assert environment.opened == ["t"]
    first = line.ask("POST", "/episodes/e/steps/0", {"text": "a"})
    assert line.ask("POST", "/episodes/e/steps/0", {"text": "a"}) == first
    assert line.ask("POST", "/episodes/e/steps/1", {"text": "b"})["observation"] == "2:b"
    for number in (0, 3):
        with pytest.raises(EpisodeFailed, match=f"step {number} does not follow step 1"):
            line.ask("POST", f"/episodes/e/steps/{number}", {"text": "c"})
    assert line.ask("GET", "/episodes/e/state")["state"]["said"] == ["a", "b"]
    line.close()


def test_an_answer_that_is_lost_is_fetched_again(serving, monkeypatch):
    """Every connection breaks once after the request went out: the work is done, the answer gone."""
    environment = Echo()
    _, remote = serving(environment)
    remote.retry_seconds = 60.0
    expected = [Echo().reset(task()).step("a")]
    original, broken = http.client.HTTPConnection.getresponse, []

    def once(self):
        if len(broken) % 2 == 0:
            broken.append(1)
            original(self)
            raise ConnectionResetError("gone")
        broken.append(0)
        return original(self)

    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", once)
    episode = remote.reset(task())
    assert [episode.step("a")] == expected
    assert episode.state()["said"] == ["a"]
    assert environment.opened == ["t"]
    assert sum(broken) >= 3


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("raise", EpisodeFailed, "ZeroDivisionError: as asked"),
        ("exit", EpisodeFailed, "SystemExit: 3"),
        ("late", TimeoutError, "its own clock"),
    ],
)
def test_what_an_environment_raises_ends_its_episode_only(serving, how, error, text):
    _, remote = serving(Echo())
    other = remote.reset(task())
    with pytest.raises(error, match=text):
        remote.reset(task(how=how)).step("a")
    with pytest.raises(EpisodeFailed, match="ValueError: no such world"):
        remote.reset(task(how="reset"))
    assert other.step("a").observation == "1:a"


def test_one_that_hangs_is_late_and_gives_its_place_back(serving):
    environment = Echo(seconds=1.0)
    server, remote = serving(environment, limit=1)
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        remote.reset(task("stuck", how="hang")).step("a")
    until(lambda: environment.closed == ["stuck"])
    assert remote.reset(task()).step("a").observation == "1:a"
    assert len(server.hosting) == 1


def test_an_episode_can_be_closed_while_a_step_of_it_has_no_answer(serving):
    environment = Echo()
    server, remote = serving(environment)
    episode, errors = remote.reset(task(how="wait")), []

    def step():
        try:
            episode.step("a")
        except EpisodeFailed as error:
            errors.append(str(error))

    thread = threading.Thread(target=step)
    thread.start()
    until(lambda: any(e.steps for e in server.hosting._episodes.values()))
    Line(remote, 60.0).ask("DELETE", episode._path)  # the connection of the step is not this thread's
    thread.join()
    environment.free.set()
    assert "closed meanwhile" in errors[0]


def test_a_full_server_lets_a_new_episode_wait_for_a_place(serving):
    server, remote = serving(Echo(), limit=2)
    one, _two, got = remote.reset(task("one")), remote.reset(task("two")), []
    thread = threading.Thread(target=lambda: got.append(remote.reset(task("three")).step("a").observation))
    thread.start()
    with pytest.raises(Refused, match="2 episodes are open"):
        server.hosting.begin("more", task(), object())
    one.close()
    thread.join()
    assert got == ["1:a"]


def test_episodes_of_a_client_that_was_killed_are_closed(serving):
    environment = Echo()
    server, _ = serving(environment, grace=0.2)
    code = (
        "import os, sys; from components.environments.remote.client import RemoteEnvironment as R; "
        f"e = R(url={server.url!r}); kept = [e.reset(None) for _ in range(3)]; kept[0].step('a'); "
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=os.getcwd(), env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert len(environment.opened) == 3
    until(lambda: len(environment.closed) == 3 and len(server.hosting) == 0)


def test_episodes_that_nobody_asks_for_are_closed_and_held_ones_are_not(serving):
    server, remote = serving(Echo(), grace=60.0, idle=0.3)
    idle = remote.reset(task())
    until(lambda: len(server.hosting) == 0)
    with pytest.raises(EpisodeFailed, match="closed, or the server was started anew"):
        idle.step("a")
    hosting = Hosting(Echo(), grace=1e-6, idle=1e6)
    holder = object()
    hosting.begin("e", None, holder)
    assert hosting.sweep() == 0
    hosting.release(holder)
    time.sleep(0.01)
    assert hosting.sweep() == 1


def test_nobody_gets_in_without_the_token(serving, monkeypatch):
    server, remote = serving(Echo())
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", "another-token")
    with pytest.raises(EpisodeFailed, match=r"R1FLOW_ENVS_TOKEN holds another one\. Fix: export"):
        remote.reset(task())
    monkeypatch.delenv("R1FLOW_ENVS_TOKEN")
    with pytest.raises(EpisodeFailed, match="R1FLOW_ENVS_TOKEN is not set"):
        _ = remote.stop
    assert server.url.startswith("http://127.0.0.1:")
    assert len(server.hosting) == 0
    with pytest.raises(ValueError, match="at least 8"):
        EnvironmentServer(Hosting(Echo()), token="short")


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "kind"),
    [
        ("GET", "/nothing", None, 400, "request"),
        ("POST", "/episodes/../x/steps/0", {"text": "a"}, 400, "request"),
        ("PUT", "/episodes/e", {"task": {"id": "x"}}, 400, "request"),
        ("PUT", "/episodes/e", [1], 400, "request"),
        ("POST", "/episodes/e/steps/0", {"text": 1}, 400, "request"),
        ("POST", "/episodes/e/steps/0", {"text": "a"}, 404, "unknown"),
        ("GET", "/episodes/e/state", None, 404, "unknown"),
        ("DELETE", "/episodes/e", None, 200, None),
        ("POST", "/schemas", {"task": None}, 200, None),
    ],
)
def test_requests_of_any_kind_are_answered(serving, method, path, body, code, kind):
    server, _ = serving(Echo())
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read()).get("error")) == (code, kind)
    connection.close()


def test_a_server_that_is_not_there_or_another_one_is_named(serving):
    with pytest.raises(Unreachable, match=r"no environment server answers at http://127.0.0.1:1 .*r1flow envs serve"):
        RemoteEnvironment(url="http://127.0.0.1:1", retry_seconds=0.0).reset(None)
    server, _ = serving(Echo())
    assert RemoteEnvironment(url=server.url, digest="d1").stop == ("</tool>",)
    with pytest.raises(ValueError, match="is d1, not d2"):
        _ = RemoteEnvironment(url=server.url, digest="d2").stop
    with pytest.raises(ValueError, match="no address of a server"):
        RemoteEnvironment(url="127.0.0.1:8765")
    assert remote_environment_check({"url": server.url}) == []
    (told,) = remote_environment_check({"url": "http://127.0.0.1:1"})
    assert told.startswith("url: warning: no environment server answers at http://127.0.0.1:1")


FORK = """
import sys, threading
sys.path[:0] = [{root!r}, {here!r}]
from remote_cases import Echo
from components.environments.remote.forks import Forked
from components.environments.remote.hosting import Hosting
from components.environments.remote.server import EnvironmentServer
forked = Forked(Echo(seconds={seconds}), memory_mib=0)
server = EnvironmentServer(Hosting(forked, grace=5.0), token={token!r})
print(server.url, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.close())).start()
server.serve()
"""


@pytest.fixture
def forking(monkeypatch):
    """A server in a process of its own, with a process per episode."""
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", TOKEN)
    here = os.path.dirname(__file__)
    code = FORK.format(root=os.getcwd(), here=here, seconds=5.0, token=TOKEN)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield RemoteEnvironment(url=process.stdout.readline().strip(), retry_seconds=0.0), process
        process.stdin.close()


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("kill", EpisodeFailed, "process of the tools ended"),
        ("hang", TimeoutError, "within 5 s"),
        ("raise", EpisodeFailed, "ZeroDivisionError: as asked"),
    ],
)
def test_an_environment_that_ends_its_interpreter_ends_its_own_process_only(forking, how, error, text):
    remote, server = forking
    other, episode = remote.reset(task(how="flood")), remote.reset(task(how=how))
    with pytest.raises(error, match=text):
        episode.step("a")
    assert other.step("a").observation == "1:a"  # and a gigabyte, which went nowhere
    assert remote.reset(None).state()["process"] != other.state()["process"]
    assert server.poll() is None


def test_forks_answer_as_the_environment_itself():
    code = f"""
import sys
sys.path[:0] = [{os.getcwd()!r}, {os.path.dirname(__file__)!r}]
from remote_cases import Echo
from components.environments.remote.forks import Forked
forked, here = Forked(Echo()).reset(None), Echo().reset(None)
texts = ["a", "two", "nothing", "b"]
assert [forked.step(t) for t in texts] == [here.step(t) for t in texts]
assert forked.state()["said"] == here.state()["said"]
forked.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.timeout(300)
def test_the_command_serves_what_the_overrides_choose_and_ends_when_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    command = [sys.executable, "-m", "flows.cli", "envs", "serve", "environment=agent", "environment.max_turns=2"]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {k: v for k, v in os.environ.items() if k != "R1FLOW_ENVS_TOKEN"}
    with subprocess.Popen([*command, "--port", "0"], cwd=tmp_path, env=environment, **piped) as process:
        name, _, token = process.stdout.readline().removeprefix("export ").strip().partition("=")
        overrides = dict(part.split("=", 1) for part in process.stdout.readline().split())
        monkeypatch.setenv(name, token)
        remote = RemoteEnvironment(url=overrides["environment.url"], digest=overrides["environment.digest"])
        assert remote.chat and remote.inspects
        world = Task("w", (Message("user", "go"),), None, "exact", meta={"store": {"a": "1"}, "tools": ["get", "put"]})
        assert [s["function"]["name"] for s in remote.schemas(world)] == ["get", "put"]
        episode = remote.reset(world)
        call = '<tool_call>{"name": "put", "arguments": {"key": "b", "value": "2"}}</tool_call>'
        assert episode.step(call).observation == ("ok",)
        assert episode.state()["store"] == {"a": "1", "b": "2"}
        episode.close()
        process.terminate()
        assert process.wait(60) == 0


def test_the_command_names_what_it_cannot_serve(tmp_path, capsys, monkeypatch):
    from flows.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["envs", "serve", "environment=none"]) == 2
    assert "there is nothing to serve" in capsys.readouterr().err
    assert main(["envs", "serve", "environment=shel"]) == 2
    assert "shell" in capsys.readouterr().err
    assert main(["envs", "serve", "environment=agent", "environment.max_turns=0"]) == 2
    assert "max_turns" in capsys.readouterr().err
