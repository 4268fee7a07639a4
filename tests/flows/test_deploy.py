"""The pipeline as a deployment: really served, triggered through a real server's API, cancelled there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.flows.conftest import FIXTURES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 240.0


def ask(url: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{url}/api/{path}", json.dumps(body or {}).encode(), {"content-type": "application/json"}
    )
    for _ in range(20):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 503:  # its database is locked for the moment
                raise
            time.sleep(1)
    raise TimeoutError(f"{path}: the server has no time")


def becomes(wanted: Any, look: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    return seen


@pytest.fixture
def served(tmp_path, conf):
    """Addresses of our own server and of the deployment, which is being served."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}", "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    environment |= {"PREFECT_PROFILES_PATH": str(tmp_path / "no-profiles.toml"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "flows.cli"]
    log = tmp_path / "served.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "deploy", "first.steps=3", "--config-dir", str(conf), "--name=nightly", "--cron=0 3 * * *"],
            cwd=tmp_path, env=environment, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        assert becomes(True, lambda: "is being served" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        server = json.loads((tmp_path / "artifacts" / "prefect" / "server.json").read_text())
        url = f"http://127.0.0.1:{server['port']}"
        [deployment] = ask(url, "deployments/filter")
        yield url, deployment
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        subprocess.run(
            [*command, "ui", "--stop"], cwd=tmp_path, env=environment, check=False, stdout=subprocess.DEVNULL
        )


def trigger(url: str, deployment: Any, *overrides: str) -> str:
    body = {"parameters": {**deployment["parameters"], "overrides": list(overrides)}}
    return ask(url, f"deployments/{deployment['id']}/create_flow_run", body)["id"]


def state(url: str, run: str) -> dict[str, Any]:
    [found] = ask(url, "flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return found["state"]


def tasks(url: str, run: str) -> dict[str, str]:
    found = ask(url, "task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return {task["name"]: task["state_name"] for task in found}


def test_a_deployment_has_its_schedule_runs_with_other_parameters_and_can_be_cancelled(served, tmp_path):
    url, deployment = served
    assert deployment["parameters"]["overrides"] == ["first.steps=3"]
    [schedule] = deployment["schedules"]
    assert schedule["schedule"]["cron"] == "0 3 * * *"

    run = trigger(url, deployment, "second.steps=7")
    assert becomes("COMPLETED", lambda: state(url, run)["type"]) == "COMPLETED"
    assert tasks(url, run) == dict.fromkeys(("numbers", "first", "second", "report"), "Completed")
    assert {row["key"] for row in ask(url, "artifacts/filter")} >= {"stages", "second"}

    wrong = trigger(url, deployment, "second.stepz=7")
    assert becomes("FAILED", lambda: state(url, wrong)["type"]) == "FAILED"
    assert "did you mean steps" in state(url, wrong)["message"]

    waiting = trigger(url, deployment, "pipeline=waiting", "wait.seconds=300")
    assert becomes(True, lambda: bool(list(tmp_path.glob("artifacts/cache/wait/*.partial/begun"))))
    ask(url, f"flow_runs/{waiting}/set_state", {"state": {"type": "CANCELLING"}, "force": True})

    def recorded() -> list[str]:
        return sorted(json.loads(file.read_text())["state"] for file in tmp_path.glob("artifacts/runs/*/run.json"))

    assert becomes(["done", "interrupted"], recorded) == ["done", "interrupted"]  # it stopped at a step of its own
