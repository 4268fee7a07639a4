import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from components.tracking.mlflow import MlflowTracker, Recorder, record_pending
from flows.local_server import free_port, wait_until_it_answers


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One store for all tests: creating its tables takes seconds."""
    return tmp_path_factory.mktemp("artifacts") / "mlflow"


def recorded(home, run):
    """Runs of the pipeline run by name: itself and its stages."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiment = client.get_experiment_by_name("r1flow-r1")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    parent = next(r for r in runs if r.info.run_name == run)
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    return client, {r.info.run_name: r for r in [parent, *children]}


def events(tmp_path, run, last="done"):
    page = tmp_path / "report" / "k"
    page.mkdir(parents=True, exist_ok=True)
    (page / "report.html").write_text("<p>hello</p>")
    (page / "model.safetensors").write_bytes(b"weights")
    artifact = {"key": "k", "path": str(page), "digest": "d"}
    params = {"rl_1": {"lr": 3e-4, "reward": {"weights": {"format": 0.1}}, "hub_token": "secret-value"}}
    return [
        {"event": "run", "state": "started", "run": run, "pipeline": "r1", "seed": 3, "params": params},
        {"event": "stage", "stage": "curate", "state": "reused", "metrics": {"tasks": 12}},
        {"event": "stage", "stage": "rl_1", "state": "building", "why": "seed was 2, now 3"},
        *(
            {"event": "metrics", "stage": "rl_1", "step": s, "values": {"reward": s / 10, "kl": float("nan")}}
            for s in range(5)
        ),
        {"event": "finding", "stage": "rl_1", "step": 4, "name": "truncation", "text": "truncation (step 4): 93% cut"},
        {"event": "stage", "stage": "rl_1", "state": "done", "wall_s": 1.5, "metrics": {"reward": 0.4}},
        {"event": "stage", "stage": "report", "state": last, "artifact": artifact, "metrics": {"rl_1/pass@1": 0.6}},
        {"event": "run", "state": last},
    ]


def test_a_run_is_recorded_with_a_child_per_stage(tmp_path, home):
    tracker = MlflowTracker(directory=str(home), patience_s=120)
    for event in events(tmp_path, "r-1"):
        tracker(event)
    client, runs = recorded(home, "r-1")
    assert set(runs) == {"r-1", "curate", "rl_1", "report"}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    parent, rl = runs["r-1"], runs["rl_1"]
    assert rl.data.tags["r1flow.why"] == "seed was 2, now 3"
    assert rl.data.params["reward.weights.format"] == "0.1"
    assert rl.data.params["hub_token"] == "***"
    assert [m.value for m in client.get_metric_history(rl.info.run_id, "reward")] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert rl.data.metrics["wall_s"] == 1.5
    assert "kl" not in rl.data.metrics
    assert runs["curate"].data.tags["r1flow.state"] == "reused"
    assert rl.data.tags["r1flow.finding.truncation"] == "truncation (step 4): 93% cut"
    assert parent.data.tags["r1flow.finding.truncation"] == "rl_1 step 4"
    assert parent.data.metrics["rl_1/pass_at_1"] == 0.6
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["environment.json", "report.html"]
    assert not (home / "pending").exists()


def test_a_killed_run_is_closed_by_the_next(tmp_path, home):
    code = (
        "import os, sys; from pathlib import Path; from components.tracking.mlflow import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]), None, {})\n"
        "recorder.record({'event': 'run', 'state': 'started', 'run': 'r-2', 'pipeline': 'r1', 'time': 1})\n"
        "recorder.record({'event': 'stage', 'stage': 'rl_1', 'state': 'building', 'time': 2})\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(home)], timeout=120).returncode == -9
    assert {run.info.status for run in recorded(home, "r-2")[1].values()} == {"RUNNING"}
    tracker = MlflowTracker(directory=str(home), patience_s=120)
    for event in events(tmp_path, "r-3", last="failed"):
        tracker(event)
    assert {run.info.status for run in recorded(home, "r-2")[1].values()} == {"KILLED"}
    after = {name: run.info.status for name, run in recorded(home, "r-3")[1].items()}
    assert after == {"r-3": "FAILED", "curate": "FINISHED", "rl_1": "FINISHED", "report": "FAILED"}


def test_a_store_that_cannot_be_written_stops_nothing_and_is_filled_later(tmp_path, home, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/nowhere/mlflow.db")
    tracker = MlflowTracker(directory=str(home), patience_s=60)
    for event in events(tmp_path, "r-4"):
        tracker(event)
    assert "The run goes on" in caplog.text
    assert (home / "pending" / "r-4.jsonl").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert record_pending(home) == 1
    assert record_pending(home) == 0
    assert len(recorded(home, "r-4")[1]) == 4


def test_a_run_that_was_killed_is_closed_by_a_run_of_another_pipeline(home):
    tracker_of = {"event": "run", "state": "started", "time": 1}
    dead = Recorder(home, None, {})
    dead.record({**tracker_of, "run": "r-5", "pipeline": "r1"})
    run_id = dead.memo["parent"]
    dead.client.set_tag(run_id, "r1flow.process", f"{socket.gethostname()}/1234567890@1")  # there is no such process
    Recorder(home, None, {}).record({**tracker_of, "run": "r-6", "pipeline": "smoke"})
    assert dead.client.get_run(run_id).info.status == "KILLED"


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_of_a_run_stops_nothing_and_gets_everything_once_later(
    tmp_path, monkeypatch, caplog
):
    def start(port):
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
        ]
        store = [
            "--backend-store-uri",
            f"sqlite:///{tmp_path}/server.db",
            "--artifacts-destination",
            str(tmp_path / "files"),
        ]
        process = subprocess.Popen([*command, *store], start_new_session=True, stdout=subprocess.DEVNULL)
        wait_until_it_answers(f"http://127.0.0.1:{port}/health", limit_s=120)
        return process

    def kill(process):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    port, home = free_port(0), tmp_path / "mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    server = start(port)
    try:
        from mlflow.tracking import MlflowClient

        client = MlflowClient()
        *before, after, report, end = events(tmp_path, "r-7")
        tracker = MlflowTracker(directory=str(home), flush_every_s=0.1, patience_s=60)
        for event in before:
            tracker(event)
        deadline = time.monotonic() + 60
        while not curves(client, "r-7").get("reward") and time.monotonic() < deadline:
            time.sleep(0.1)
        kill(server)
        more = [{"event": "metrics", "stage": "rl_1", "step": s, "values": {"reward": s / 10}} for s in range(5, 9)]
        for event in (*more, after, report, end):
            tracker(event)
        assert "The run goes on; what is missing there is kept and recorded by a later run" in caplog.text
        assert (home / "pending" / "r-7.jsonl").exists()
        server = start(port)
        later = MlflowTracker(directory=str(home), patience_s=60)
        for event in events(tmp_path, "r-8"):
            later(event)
        assert curves(client, "r-7")["reward"] == list(range(9))
        assert curves(client, "r-8")["reward"] == list(range(5))
        assert not list((home / "pending").glob("*"))
    finally:
        kill(server)


def curves(client, run):
    """Steps recorded of each metric of the run's RL stage."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments)
    parents = [found.info.run_id for found in runs if found.info.run_name == run]
    found = {}
    for child in runs:
        if child.data.tags.get("mlflow.parentRunId") in parents and child.info.run_name == "rl_1":
            for name in child.data.metrics:
                found[name] = [point.step for point in client.get_metric_history(child.info.run_id, name)]
    return found


def test_listening_does_not_import_mlflow():
    code = (
        "import sys; from components.tracking.mlflow import MlflowTracker as M; M(); sys.exit('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_server_that_is_not_there_is_said_once_in_one_line_and_the_run_is_kept(tmp_path, monkeypatch, caplog):
    with socket.socket() as probe:  # a port that nobody listens on
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret-word@127.0.0.1:{port}")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    tracker = MlflowTracker(directory=str(tmp_path / "mlflow"), flush_every_s=0.1)
    for event in events(tmp_path, "r-unheard"):
        tracker(event)
    [line] = [record.getMessage() for record in caplog.records if "MLflow" in record.getMessage()]
    assert line.startswith(f"MLflow: no server answers at http://127.0.0.1:{port} (Connection refused). Fix: start it")
    assert "secret-word" not in line
    assert "\n" not in line
    assert [file.stem for file in (tmp_path / "mlflow" / "pending").iterdir()] == ["r-unheard"]
