"""What MLflow is told besides curves: sweeps, inputs, tables, sample rollouts, models; a real store, a real server."""

import json
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.tracking.mlflow import MlflowTracker, Recorder
from components.tracking.processes import is_gone, process_mark
from flows.local_server import free_port, wait_until_it_answers


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A client of one store with a whole sweep of two runs in it, and the store's directory."""
    before = os.environ.pop("MLFLOW_TRACKING_URI", None)
    root = tmp_path_factory.mktemp("artifacts")
    record_sweep(root)
    from mlflow.tracking import MlflowClient

    yield MlflowClient(f"sqlite:///{root}/mlflow/mlflow.db"), root
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before


def artifact(root, stage):
    """A finished stage with rollouts, an evaluation's summary, a report or a model, and its manifest."""
    folder = root / "cache" / stage / "k1"
    folder.mkdir(parents=True, exist_ok=True)
    parents = {"data": {"stage": "curate", "key": "k0", "digest": "d" * 64}} if stage != "curate" else {}
    (folder / "manifest.json").write_text(json.dumps({"parents": parents}))
    if stage == "rl_1":
        (folder / "rollouts").mkdir(exist_ok=True)
        (folder / "model").mkdir(exist_ok=True)
        rows = [
            {
                "step": 1, "task_id": "t", "family": "gcd", "level": 2, "kind": "reasoning", "prompt": "2*3 = ?",
                "response": f"<think><tool>2*3</tool><result>6</result></think><answer>{i}</answer>", "total": float(i),
                "tokens": [1], "action_mask": [True], "outcome": "scored", "length": 9, "finish": "stop",
                "term.format": 1.0,
            }
            for i in range(4)
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), folder / "rollouts" / "step-000001.parquet")
    if stage == "report":
        estimate = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}
        change = {"pass@1": {"effect": 0.1, "p_holm": 0.03, "verdict": "better"}}
        stages = [{"name": "rl_1", "metrics": {"pass@1": estimate}, "changes": change}]
        (folder / "summary.json").write_text(json.dumps({"stages": stages}))
        (folder / "report.html").write_text("<p>hello</p>")
    return {"key": "k1", "path": str(folder), "digest": "e" * 64}


def record_sweep(root, **settings):
    for number, seed in enumerate((1, 2)):
        tracker = MlflowTracker(directory=str(root / "mlflow"), patience_s=120, samples=3, **settings)
        started = {"run": f"r-{seed}", "pipeline": "r1", "seed": seed, "git": "abc123", "config": "seed: 1\n"}
        started |= {
            "sweep": f"s-1/{number}",
            "arm": f"reward.weights.w=0.1 seed={seed}",
            "sweep_process": process_mark(),
        }
        tracker({"event": "run", "state": "started", **started})
        for stage in ("curate", "rl_1", "report"):
            tracker({"event": "stage", "stage": stage, "state": "building", "why": "building: never built"})
            tracker(
                {"event": "stage", "stage": stage, "state": "done", "artifact": artifact(root, stage), "metrics": {}}
            )
        tracker({"event": "run", "state": "done"})
    (root / "table.md").write_text("| arm |\n")
    tracker = MlflowTracker(directory=str(root / "mlflow"), patience_s=120)
    ended = {"files": [str(root / "table.md")], "table": [{"arm": "w=0.1", "metric": "pass@1", "value": 0.5}]}
    ended |= {"metrics": {"runs_done": 2.0}, "params": {"command": "w=0.1 seed=1,2"}, "sweep_process": process_mark()}
    tracker({"event": "sweep", "run": "s-1", "pipeline": "r1", "state": "running", "sweep_process": process_mark()})
    tracker({"event": "sweep", "run": "s-1", "pipeline": "r1", "state": "done", **ended})


def runs_of(client):
    experiment = client.get_experiment_by_name("r1flow-r1")
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def below(client, parent):
    experiment = client.get_experiment_by_name("r1flow-r1")
    query = f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id], query)}


def test_a_sweep_is_a_run_with_a_run_per_arm_and_in_these_one_per_stage(store):
    client, _ = store
    sweep = runs_of(client)["sweep s-1"]
    arms = below(client, sweep)
    assert set(arms) == {"reward.weights.w=0.1 seed=1", "reward.weights.w=0.1 seed=2"}
    assert set(below(client, arms["reward.weights.w=0.1 seed=1"])) == {"curate", "rl_1", "report"}
    assert {run.info.status for run in runs_of(client).values()} == {"FINISHED"}
    assert sweep.data.metrics == {"runs_done": 2.0}
    assert sweep.data.params == {"command": "w=0.1 seed=1,2"}
    assert [file.path for file in client.list_artifacts(sweep.info.run_id)] == ["arms.json", "table.md"]


def test_a_run_has_its_settings_revision_environment_and_evaluation(store):
    client, _ = store
    arm = runs_of(client)["reward.weights.w=0.1 seed=2"]
    assert arm.data.tags["mlflow.source.git.commit"] == "abc123"
    assert arm.data.tags["r1flow.run"] == "r-2"
    files = [file.path for file in client.list_artifacts(arm.info.run_id)]
    assert {"config.yaml", "environment.json", "evaluation.json", "report.html"} <= set(files)
    table = client.load_table(arm.info.experiment_id, "evaluation.json", [arm.info.run_id])
    row = table.iloc[0].to_dict()
    assert (row["stage"], row["metric"], row["value"], row["verdict"]) == ("rl_1", "pass@1", 0.5, "better")
    assert (row["low"], row["high"], row["n"], row["p (Holm)"]) == pytest.approx((0.4, 0.6, 10, 0.03))


def test_a_stage_names_its_inputs_by_the_digest_of_their_content(store):
    client, _ = store
    rl = below(client, runs_of(client)["reward.weights.w=0.1 seed=1"])["rl_1"]
    [given] = rl.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("curate", "d" * 36)
    assert given.tags[0].value == "data"


def traces(client, run):
    return client.search_traces([run.info.experiment_id], filter_string=f"trace.run_id = '{run.info.run_id}'")


def test_rollouts_are_traces_with_scores_and_tool_calls(store):
    client, _ = store
    rl = below(client, runs_of(client)["reward.weights.w=0.1 seed=1"])["rl_1"]
    found = traces(client, rl)
    assert len(found) == 3
    scores = sorted(a.value for trace in found for a in trace.info.assessments if a.name == "reward")
    assert scores[0] == 0.0 and scores[-1] == 3.0  # the worst of the group and the best
    trace = found[0]
    assert trace.info.tags["r1flow.family"] == "gcd"
    assert "2*3 = ?" in trace.info.request_preview
    tool = next(span for span in trace.data.spans if span.name == "tool")
    assert (tool.inputs, tool.outputs) == ({"call": "2*3"}, {"result": "6"})


def test_recording_a_stage_again_adds_no_trace(store):
    client, root = store
    memo = {}
    recorder = Recorder(root / "mlflow", None, memo, samples=3)
    recorder.record({"event": "run", "state": "started", "run": "r-9", "pipeline": "r1", "time": 1})
    stage = {"event": "stage", "stage": "rl_1", "state": "done", "artifact": artifact(root, "rl_1"), "time": 2}
    recorder.record(stage)
    Recorder(root / "mlflow", None, json.loads(json.dumps(memo)), samples=3).record(stage)
    assert len(traces(client, client.get_run(memo["children"]["rl_1"]))) == 3


def test_tracking_leaves_the_address_out_of_the_environment(store):
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_a_process_that_has_ended_is_known_by_its_mark():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = process_mark(child.pid)
    assert not is_gone(mark)
    child.communicate(b"\n")
    assert is_gone(mark)
    assert not is_gone("another-machine/1@1")
    assert not is_gone("")


@pytest.mark.slow
def test_a_tracking_server_gets_all_of_it_and_models_with_their_lineage(tmp_path, monkeypatch):
    port = free_port(0)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command += ["--artifacts-destination", str(tmp_path / "files")]
    server = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/health", limit_s=180)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        record_sweep(tmp_path, register_models=True)
        from mlflow.tracking import MlflowClient

        client = MlflowClient()
        rl = below(
            client, below(client, runs_of(client)["sweep s-1"]) and runs_of(client)["reward.weights.w=0.1 seed=1"]
        )["rl_1"]
        assert len(traces(client, rl)) == 3
        versions = client.search_model_versions("name = 'r1.rl_1'")
        assert sorted(v.tags["run"] for v in versions) == ["r-1", "r-2"]
        assert {v.tags["digest"] for v in versions} == {"e" * 64}
        assert not (tmp_path / "mlflow" / "pending").exists()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
