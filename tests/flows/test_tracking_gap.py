"""Real runs against a real MLflow server that is killed while one of them works."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from flows.local_server import free_port, wait_until_it_answers
from tests.flows.conftest import FIXTURES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 40
PATIENCE_S = 240.0


def start_server(folder, port):
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "DO_NOT_TRACK": "true"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, start_new_session=True, env=environment, **quiet)
    wait_until_it_answers(f"http://127.0.0.1:{port}/health", limit_s=PATIENCE_S)
    return server


def kill(server):
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def curves(client):
    """Run → status and the steps of its stage's reward."""
    experiment = client.get_experiment_by_name("r1flow-ill")
    if experiment is None:
        return {}
    runs = client.search_runs([experiment.experiment_id])
    names = {run.info.run_id: run for run in runs}
    found = {}
    for run in runs:
        if (parent := names.get(run.data.tags.get("mlflow.parentRunId"))) is not None:
            points = client.get_metric_history(run.info.run_id, "reward")
            found[parent.info.run_name] = (parent.info.status, [point.step for point in points])
    return found


@pytest.mark.parametrize("filled_by", ["run", "ui"])
def test_the_gap_that_an_outage_left_is_filled_by_the_next_run_that_builds_or_by_the_pages(
    tmp_path, conf, monkeypatch, filled_by
):
    port, folder = free_port(0), tmp_path / "server"
    folder.mkdir()
    uri = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
    command = [sys.executable, "-m", "flows.cli", "run", "pipeline=ill", "tracking=mlflow", "rl.reward=1.0"]
    command += ["tracking.flush_every_s=0.2", "tracking.patience_s=200", "--config-dir", str(conf)]
    server = start_server(folder, port)
    try:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(uri)
        options = {"cwd": tmp_path, "env": environment, "text": True}
        first = subprocess.Popen(
            [*command, f"rl.steps={STEPS}", "rl.seconds=1.0"],
            **options,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + PATIENCE_S
        while not any(steps for _, steps in curves(client).values()) and time.monotonic() < deadline:
            time.sleep(0.3)
        kill(server)
        _, said = first.communicate(timeout=PATIENCE_S)
        assert first.returncode == 0, said
        assert said.count("The run goes on; what is missing there is kept and recorded by a later run") == 1
        [waiting] = (tmp_path / "artifacts" / "mlflow" / "pending").iterdir()
        server = start_server(folder, port)
        (name, (status, steps)) = next(iter(curves(client).items()))
        assert (status, len(steps) < STEPS) == ("RUNNING", True)
        if filled_by == "run":
            assert subprocess.run([*command, "rl.steps=7"], **options, check=False).returncode == 0
        else:
            from flows.ui import _mlflow

            assert _mlflow(tmp_path / "artifacts") == uri
        found = curves(client)
        assert found.pop(name) == ("FINISHED", list(range(1, STEPS + 1)))
        assert list(found.values()) == ([("FINISHED", list(range(1, 8)))] if filled_by == "run" else [])
        assert not waiting.exists()
        [record] = [json.loads(f.read_text()) for f in (tmp_path / "artifacts" / "runs" / name).glob("run.json")]
        assert record["state"] == "done"
    finally:
        kill(server)
