"""What a remote environment and its server refuse: one line, which names the value and one remedy, and no secret."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from remote_cases import Echo

from components.environments.from_trajectories.build import working_shell
from components.environments.remote import client, line
from components.environments.remote.client import RemoteEnvironment, remote_environment_check
from components.environments.remote.hosting import Hosting
from components.environments.remote.server import EnvironmentServer
from components.environments.tools.host import Broken
from components.environments.tools.shell import Shell
from flows.cli import main

TOKEN = "a-token-of-tests"
NO_TOKENS = [
    "a-secret\nof-two-lines",
    "a-secret\r\n",
    "ein-Geheimnis-für-alle",
    "a-s\udce9cret-of-bytes",
    "a secret",
    "short",
]


@pytest.fixture(autouse=True)
def _time_for_a_busy_machine(monkeypatch):
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", TOKEN)
    monkeypatch.setattr(line, "_PLAIN_S", 60.0)
    monkeypatch.setattr(client, "_LOOK_S", 60.0)
    client._met.cache_clear()


@pytest.fixture
def server():
    served = EnvironmentServer(Hosting(Echo()), token=TOKEN)
    thread = threading.Thread(target=served.serve)
    thread.start()
    yield served
    served.close()
    thread.join()


def one_line(text, *named):
    """The text, which names these things and one remedy."""
    assert text.count("Fix:") == 1
    assert "Traceback" not in text and "\n" not in text.strip()
    for name in named:
        assert name in text
    return text


@pytest.mark.parametrize("token", NO_TOKENS)
def test_a_token_that_cannot_be_sent_is_told_by_its_variable_and_never_shown(server, monkeypatch, token):
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", token)
    with pytest.raises(ValueError, match="is no token") as caught:
        _ = RemoteEnvironment(url=server.url, retry_seconds=0.0).stop
    assert type(caught.value) is ValueError and caught.value.__context__ is None
    (told,) = remote_environment_check({"url": server.url})
    for text in (str(caught.value), told):
        one_line(text, "R1FLOW_ENVS_TOKEN", "Fix: export the line")
        assert token.split()[-1] not in text and repr(token)[1:-1] not in text
    with pytest.raises(ValueError, match="the token must have at least 8 printable ASCII") as caught:
        EnvironmentServer(server.hosting, token=token)
    one_line(str(caught.value))


def test_the_variable_that_is_looked_at_is_the_one_of_the_settings(server, monkeypatch):
    monkeypatch.setenv("OTHER_TOKEN", "no\ntoken")
    assert RemoteEnvironment(url=server.url).stop == ("</tool>",)
    (told,) = remote_environment_check({"url": server.url, "token_env": "OTHER_TOKEN"})
    assert "OTHER_TOKEN" in told and "R1FLOW" not in told


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:99999", "Port out of range"),
        ("http://127.0.0.1:eight", "Port could not be cast"),
        ("http://127.0.0.1:0", "port 0"),
        ("http://[::1:8799", "Invalid IPv6"),
        ("hello", "does not begin with"),
        ("127.0.0.1:8765", "does not begin with"),
        ("ftp://h", "does not begin with"),
        ("http://", "does not begin with"),
        ("", "does not begin with"),
        ("http://a..b", "no host is called that"),
        ("http://" + "a" * 70, "no host is called that"),
        ("http://h/a b", "characters"),
        ("http://h\n", "characters"),
        ("http://h/é", "characters"),
        ("http://h/?a=1", "more than host, port and path"),
    ],
)
def test_an_address_that_is_none_is_named_at_once_and_before_the_run(url, why):
    with pytest.raises(ValueError, match="no address of a server") as caught:
        RemoteEnvironment(url=url)
    (told,) = remote_environment_check({"url": url})
    assert "warning" not in told
    for text in (str(caught.value), told):
        one_line(text, f"got {url!r}", why, "Fix: write it as http://127.0.0.1:8765")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1", "https://h.example:8765/envs/", "http://[::1]:80", "http://bücher.example"]
)
def test_an_address_of_any_server_is_taken(url):
    assert RemoteEnvironment(url=url).url == url.rstrip("/")


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@h", "http://me:a/hunter2@h", "me:hunter2@h", "http://me:hunter2@h:x"]
)
def test_a_password_in_an_address_is_refused_and_not_shown(monkeypatch, url):
    monkeypatch.setenv("R1FLOW_SECRET_URL", url)  # as preflight sees it
    with pytest.raises(ValueError, match="more than host, port and path") as caught:
        RemoteEnvironment(url=url)
    (told,) = remote_environment_check({"url": {"_env_": "$R1FLOW_SECRET_URL"}})
    for text in (str(caught.value), told, *remote_environment_check({"url": url})):
        assert "hunter2" not in one_line(text, "***", "more than host, port and path")


def first_use(url):
    """What an engine's first question and preflight say of what is there."""
    with pytest.raises(ValueError, match=r"Fix: .*environment\.url") as caught:
        RemoteEnvironment(url=url, retry_seconds=0.0).look(client._LOOK_S)
    (told,) = remote_environment_check({"url": url})
    assert told.removeprefix("url: warning: ") == str(caught.value)
    return one_line(str(caught.value), url)


def test_a_path_that_is_not_there_is_named(server):
    assert "nothing at the path /foo" in first_use(f"{server.url}/foo")


def test_tls_with_a_server_that_has_none_is_told_with_the_address_to_write(server, monkeypatch):
    monkeypatch.setattr(client, "_LOOK_S", 1.0)  # of a handshake that such a server may leave without an answer
    secure = "https" + server.url.removeprefix("http")
    assert f"speaks plain HTTP, no TLS. Fix: environment.url={server.url}" in first_use(secure)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (404, b'{"detail": "Not Found"}'),
        (404, b'{"error": {"message": "no such path"}}'),
        (200, b'{"ok": true}'),
        (200, b"<html>"),
        (401, b"[]"),
    ],
)
def test_a_server_of_something_else_is_named(code, body):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        first_use(f"http://127.0.0.1:{other.server_port}/at/{code}/{len(body)}")
        other.shutdown()
        thread.join()


def test_a_machine_without_the_sandbox_is_told_one_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Broken) as caught:
        working_shell(Shell())
    one_line(str(caught.value), "bwrap is not on the PATH", "Fix: install bubblewrap, util-linux")
    monkeypatch.chdir(tmp_path)
    for command in (
        ["serve", "environment=shell", "--port", "0"],
        ["record", "--families", "shell", "--to", "x.jsonl"],
    ):
        assert main(["envs", *command]) == 2
        one_line(capsys.readouterr().err, "bwrap is not on the PATH")
    for program in ("bwrap", "prlimit", "bash", "tar"):  # there, and of no use
        (tmp_path / program).write_text("#!/bin/sh\necho 'bwrap: No permissions'\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    with pytest.raises(Broken) as caught:
        working_shell(Shell())
    one_line(str(caught.value), "none works here", "Fix: install bubblewrap, allow user namespaces")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--limit", "0"], "--limit: must be at least 1 (got 0)"),
        (["--grace", "-1"], "--grace: must be a positive number of seconds (got -1.0)"),
        (["--grace", "nan"], "--grace: must be a positive number of seconds (got nan)"),
        (["--idle", "0"], "--idle: must be a positive number of seconds (got 0.0)"),
        (["--memory-mib", "-5"], "--memory-mib: is no size (got -5)"),
        (["--port", "70000"], "--port: must lie in 0 to 65535 (got 70000)"),
        (["--port", "-3"], "--port: must lie in 0 to 65535 (got -3)"),
        (["--host", ""], "--host: is empty"),
        (["--host", "a..b"], "--host: 'a..b' is no address of this machine"),
        (["--host", "192.0.2.1", "--port", "0"], "--host: '192.0.2.1' is no address of this machine"),
        (["environment.tools=[]"], "tools: there are none"),
    ],
)
def test_the_command_names_the_option_that_makes_no_sense(tmp_path, monkeypatch, capsys, options, named):
    monkeypatch.chdir(tmp_path)
    assert main(["envs", "serve", "environment=agent", *options]) == 2
    one_line(capsys.readouterr().err, named)


def test_the_command_names_a_port_that_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["envs", "serve", "environment=agent", "--port", str(port)]) == 2
    one_line(capsys.readouterr().err, f"--port: 127.0.0.1:{port} cannot be listened at", "Fix: another port")


@pytest.mark.parametrize("token", NO_TOKENS)
def test_the_command_names_the_variable_of_a_token_that_is_none(tmp_path, monkeypatch, capsys, token):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", token)
    assert main(["envs", "serve", "environment=agent"]) == 2
    assert token.split()[-1] not in one_line(capsys.readouterr().err, "R1FLOW_ENVS_TOKEN", "Fix: unset it")


def test_what_is_served_elsewhere_is_not_asked_and_not_served_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["envs", "serve", "environment=remote", f"environment.url={url}"]) == 2
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
    one_line(capsys.readouterr().err, "there is nothing to serve", "Fix: serve what that one serves")


def test_a_setting_that_only_building_finds_wrong_is_told_with_its_own_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    twice = "{_target_: components.environments.tools.arithmetic.calculator, _partial_: true}"
    assert main(["envs", "serve", "environment=agent", f"environment.tools=[{twice},{twice}]"]) == 2
    one_line(capsys.readouterr().err, "more than one is named calculator", "Fix: rename one")
