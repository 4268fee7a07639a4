"""Addresses of the pages; the servers themselves are tested in test_prefect.py and by hand."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from flows import ui
from flows.local_server import find_server


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_servers_of_the_users_are_named_and_none_is_started(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    assert ui.show_interfaces(tmp_path, console) == 0
    assert "https://prefect.example " in said(console)
    assert "https://mlflow.example " in said(console)
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_start_is_reported_with_its_log(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
    monkeypatch.setattr(ui, "mlflow_command", lambda *_: [sys.executable, "-c", "raise SystemExit('no disk')"])
    assert ui.show_interfaces(tmp_path, console) == 1
    assert "MLflow   could not start: the server ended while it was starting, see" in said(console)
    assert "no disk" in (tmp_path / "mlflow" / "server.log").read_text()


def test_stopping_ends_what_was_started_and_says_what_was_not(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
):
    code = (
        "import http.server, sys\n"
        "class Page(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Page).serve_forever()\n"
    )
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
    monkeypatch.setattr(ui, "mlflow_command", lambda home, port, store: [sys.executable, "-c", code, str(port)])
    assert ui.show_interfaces(tmp_path, console) == 0
    server = find_server(tmp_path / "mlflow")
    assert server is not None
    assert server.url in said(console)
    assert ui.show_interfaces(tmp_path, console, stop=True) == 0
    assert f"MLflow   stopped (it was at {server.url})" in said(console)
    assert "Prefect  was not running" in said(console)
    assert not server.is_running()


def test_mlflow_listens_on_this_machine_without_telemetry(tmp_path: Path):
    command = ui.mlflow_command(tmp_path, 5010)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == f"sqlite:///{tmp_path}/mlflow.db"
    assert ui.mlflow_environment()["MLFLOW_DISABLE_TELEMETRY"] == "true"
