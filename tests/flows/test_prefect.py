"""Prefect's record of runs, with a real server: one start for the whole file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from flows.launch.events import Fanout
from flows.local_server import Server, answers, ensure_server, find_server, free_port, stop_server
from flows.pipeline import Driver, RunResult
from flows.prefect_listener import PrefectListener
from flows.prefect_server import configured_api_url, ensure_prefect_server, wait_for_prefect
from flows.stage import StageSpec, run_stage

pytestmark = pytest.mark.timeout(480)
TOYS = "tests.flows.toy_stages_c"
IN_PROCESS = {"_target_": "flows.launch.inprocess.InProcess"}
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0  # the server shares two cores with whatever else runs


@pytest.fixture(autouse=True)
def no_server_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "no-profiles.toml"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("prefect")
    with ThreadPoolExecutor(3) as pool:  # three first-comers, one server
        servers = list(pool.map(ensure_prefect_server, [home] * 3))
    assert len(set(servers)) == 1
    wait_for_prefect(f"{servers[0].url}/api", home=home, server=servers[0])
    yield home
    stop_server(home)


@pytest.fixture
def server(home: Path) -> Server:
    server = find_server(home)
    assert server is not None
    return server


def spec(name: str, function: str = "count", **more: Any) -> StageSpec:
    return StageSpec(name, f"{TOYS}.{function}", launcher=IN_PROCESS, **more)


def run(
    specs: list[StageSpec], root: Path, home: Path, name: str, limit_s: float = PATIENCE_S
) -> tuple[RunResult, str]:
    """A real run recorded in Prefect, and everything that was said."""
    store, said = ArtifactStore(root / "cache"), []
    with Fanout([lambda event: said.append(event.get("text", ""))]) as emit:
        prefect = PrefectListener(home, name, emit)
        emit.add(prefect)
        result = Driver(
            specs,
            lambda spec, parents, launch, say: run_stage(spec, parents, store, launch, say),
            emit=emit,
            allow=(TOYS,),
        ).run()
        emit.flush()
        prefect.close(limit_s)
    return result, "\n".join(said)


def ask(server: Server, path: str, **body: Any) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{server.url}/api/{path}/filter", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def flow_run(server: Server, name: str) -> dict[str, Any]:
    found = ask(server, "flow_runs", flow_runs={"name": {"any_": [name]}})
    assert len(found) <= 1
    return found[0] if found else {"id": None, "state_name": None}


def stage_states(server: Server, name: str) -> dict[str, str]:
    runs = ask(server, "task_runs", flow_runs={"id": {"any_": [flow_run(server, name)["id"]]}})
    return {run["name"]: run["state_name"] for run in runs}


def becomes(wanted: Any, look: Callable[[], Any]) -> Any:
    """What ``look`` returns once it is ``wanted``, or at last: the server records events a moment later."""
    deadline = time.monotonic() + 60
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    return seen


def test_a_run_shows_its_stages_and_a_second_one_shows_them_cached(home: Path, server: Server, tmp_path: Path):
    specs = [spec("a"), spec("b", inputs={"x": "a"}), spec("c", inputs={"x": "a", "y": "b"})]
    result, said = run(specs, tmp_path, home, "first")
    assert result.state == "done"
    assert f"{server.url}/runs/flow-run/" in said
    assert "r1flow ui --stop" in said
    assert becomes("Completed", lambda: flow_run(server, "first")["state_name"]) == "Completed"
    done = dict.fromkeys("abc", "Completed")
    assert becomes(done, lambda: stage_states(server, "first")) == done
    assert {row["key"] for row in ask(server, "artifacts")} >= {"a", "b", "c"}

    result, _ = run(specs, tmp_path, home, "second")
    assert {outcome.state for outcome in result.stages.values()} == {"reused"}
    cached = dict.fromkeys("abc", "Cached")
    assert becomes(cached, lambda: stage_states(server, "second")) == cached
    key = result.stages["a"].artifact.key  # type: ignore[union-attr]
    runs = ask(server, "task_runs", flow_runs={"id": {"any_": [flow_run(server, "second")["id"]]}})
    assert next(run for run in runs if run["name"] == "a")["state"]["message"] == key


def test_a_stage_shows_its_log_its_progress_and_an_evaluations_figures(home: Path, server: Server, tmp_path: Path):
    metrics = {"pass@1": {"value": 0.5, "low": 0.41234, "high": 0.6, "n": 10}}
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": metrics}))
    listener = PrefectListener(home, "shown", lambda event: None)
    for event in (
        {"event": "run", "state": "running", "stages": [{"stage": "eval_1", "inputs": {}}]},
        {"event": "stage", "stage": "eval_1", "state": "building", "why": "building: never built"},
        {"event": "say", "stage": "eval_1", "text": "640 prompts"},
        {"event": "metrics", "stage": "eval_1", "step": 3, "values": {"reward": 0.25}},
        {"event": "progress", "stage": "eval_1", "done": 1, "total": 4},
        {
            "event": "stage", "stage": "eval_1", "state": "done", "wall_s": 2.0, "metrics": {"pass@1": 0.5},
            "artifact": {"key": "k", "path": str(tmp_path), "digest": "d"},
        },
        {"event": "run", "state": "done"},
    ):  # fmt: skip
        listener(event)
    listener.close(PATIENCE_S)
    run_id = flow_run(server, "shown")["id"]
    found = {row["key"]: row for row in ask(server, "artifacts") if row["flow_run_id"] == run_id}
    assert found["eval-1-progress"]["type"] == "progress" and found["eval-1-progress"]["data"] == 100
    assert json.loads(found["eval-1-figures"]["data"]) == [{"metric": "pass@1", **metrics["pass@1"], "low": 0.4123}]
    assert "| pass@1 | 0.5 |" in found["eval-1"]["data"]
    assert "| eval_1 | done | 2.0 |" in found["stages"]["data"]
    [task] = ask(server, "task_runs", flow_runs={"id": {"any_": [run_id]}})
    wanted = {"building: never built", "640 prompts", "step 3: reward 0.25"}

    def told() -> set[str]:
        return {row["message"] for row in ask(server, "logs", logs={"task_run_id": {"any_": [task["id"]]}})} & wanted

    assert becomes(wanted, told) == wanted


def test_what_prefect_hears_late_has_the_times_at_which_it_happened(home: Path, server: Server, tmp_path: Path):
    began = time.time() - 3600  # as if the server had needed an hour to start
    artifact = {"key": "k", "path": str(tmp_path), "digest": "d"}
    listener = PrefectListener(home, "late", lambda event: None)
    for seconds, event in (
        (0, {"event": "run", "state": "running", "stages": [{"stage": s, "inputs": {}} for s in "abc"]}),
        (1, {"event": "stage", "stage": "a", "state": "reused", "artifact": artifact}),
        (2, {"event": "stage", "stage": "b", "state": "building", "why": "never built"}),
        (3, {"event": "stage", "stage": "c", "state": "resumed", "why": "at step 3"}),
        (42, {"event": "say", "stage": "b", "text": "half of it"}),
        (102, {"event": "stage", "stage": "b", "state": "done", "wall_s": 100.0, "artifact": artifact}),
        (103.5, {"event": "stage", "stage": "c", "state": "failed", "why": "no", "wall_s": 100.5}),
        (104, {"event": "run", "state": "failed"}),
    ):
        listener({**event, "time": began + seconds})
    listener.close(PATIENCE_S)
    run_id = flow_run(server, "late")["id"]

    def states() -> dict[str, str]:
        return stage_states(server, "late")

    wanted = {"a": "Cached", "b": "Completed", "c": "Failed"}
    assert becomes(wanted, states) == wanted
    tasks = {t["name"]: t for t in ask(server, "task_runs", flow_runs={"id": {"any_": [run_id]}})}
    assert [tasks[s]["total_run_time"] for s in "abc"] == pytest.approx([0, 100, 100.5], abs=0.01)
    for stage, start, end in (("b", 2, 102), ("c", 3, 103.5)):
        at = [datetime.fromisoformat(tasks[stage][key]).timestamp() - began for key in ("start_time", "end_time")]
        assert at == pytest.approx([start, end], abs=0.01)
    assert becomes(1, lambda: len(log(server, tasks["b"]["id"], "half of it"))) == 1
    [line] = log(server, tasks["b"]["id"], "half of it")
    assert datetime.fromisoformat(line["timestamp"]).timestamp() - began == pytest.approx(42, abs=0.01)
    assert flow_run(server, "late")["state"]["message"] == "a stage failed, after 104.0 s"


def log(server: Server, task: str, text: str) -> list[dict[str, Any]]:
    return [row for row in ask(server, "logs", logs={"task_run_id": {"any_": [task]}}) if row["message"] == text]


def test_a_failed_stage_and_what_needs_it(home: Path, server: Server, tmp_path: Path):
    specs = [spec("bad", "fail", settings={"how": "raise"}), spec("child", inputs={"x": "bad"}), spec("good")]
    result, _ = run(specs, tmp_path, home, "broken")
    assert result.exit_code == 1
    expected = {"bad": "Failed", "child": "NotReady", "good": "Completed"}
    assert becomes(expected, lambda: stage_states(server, "broken")) == expected
    assert becomes("Failed", lambda: flow_run(server, "broken")["state_name"]) == "Failed"


_DRIVER = """
import sys, time
from pathlib import Path
from flows.prefect_listener import PrefectListener
listener = PrefectListener(Path(sys.argv[1]), "killed", lambda event: print(event["text"], flush=True))
listener({"event": "run", "state": "running", "stages": [{"stage": "a", "inputs": {}}]})
listener({"event": "stage", "stage": "a", "state": "building", "why": ""})
time.sleep(600)
"""


def test_kill_9_of_the_driver_leaves_a_crashed_run(home: Path, server: Server):
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER, str(home)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert "flow-run" in driver.stdout.readline()
    driver.kill()
    driver.wait()
    assert becomes("Crashed", lambda: flow_run(server, "killed")["state_name"]) == "Crashed"
    assert becomes({"a": "Crashed"}, lambda: stage_states(server, "killed")) == {"a": "Crashed"}


@pytest.mark.parametrize(
    ("name", "record", "run_state", "stage_state"),
    [
        # As after a power failure: nobody was left to record it.
        pytest.param("forgotten", None, "Crashed", "Crashed", marks=pytest.mark.slow),
        ("missed", {"state": "done", "stages": {"a": {"state": "done"}}}, "Completed", "Completed"),
        pytest.param(
            *("cut", {"state": "interrupted", "stages": {"a": {"state": "interrupted"}}}),
            *("Interrupted", "Interrupted"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_whose_end_prefect_missed_is_closed_by_the_next_one_as_its_record_says(
    home: Path, server: Server, tmp_path: Path, name: str, record: Any, run_state: str, stage_state: str
):
    script = _DRIVER.replace('"killed"', repr(name))
    driver = subprocess.Popen([sys.executable, "-c", script, str(home)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert "flow-run" in driver.stdout.readline()
    assert becomes({"a": "Running"}, lambda: stage_states(server, name)) == {"a": "Running"}
    [recorder] = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    os.kill(int(recorder), signal.SIGKILL)
    driver.kill()
    driver.wait()
    if record:
        (home.parent / "runs" / name).mkdir(parents=True)
        (home.parent / "runs" / name / "run.json").write_text(json.dumps(record))
    assert flow_run(server, name)["state_name"] == "Running"
    run([spec("a")], tmp_path, home, f"after-{name}")
    assert flow_run(server, name)["state_name"] == run_state
    assert becomes({"a": stage_state}, lambda: stage_states(server, name)) == {"a": stage_state}


def test_everything_listens_on_this_machine_only(server: Server):
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = [
        row[1].split(":")[0] for row in listening if int(row[1].split(":")[1], 16) == server.port and row[3] == "0A"
    ]
    assert here == ["0100007F"]


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL])
def test_a_server_that_dies_does_not_hold_up_the_run(home: Path, server: Server, tmp_path: Path, signum: int):
    """Last in this file: it ends the server that the others use. Stopped is worse than dead: it takes connections."""
    specs = [spec("a"), spec("slow", "steps", inputs={"x": "a"}, settings={"n": 20})]
    begin = time.monotonic()
    os.kill(server.pid, signum)
    try:
        result, said = run(specs, tmp_path, home, "alone", limit_s=1.0)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert result.state == "done"
    assert "in the background" in said
    assert time.monotonic() - begin < 100


def test_a_server_that_cannot_be_reached_is_named_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port(0)}/api")
    result, said = run([spec("a")], tmp_path, tmp_path / "prefect", "unheard")
    assert result.state == "done", result
    [line] = [line for line in said.splitlines() if "Prefect" in line]
    assert line.startswith("Prefect does not record this run: no answer from http://127.0.0.1")
    assert "Fix: start that server, or unset PREFECT_API_URL" in line


def test_an_address_that_is_none_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", "user:secret@nonsense")
    _, said = run([spec("a")], tmp_path, tmp_path / "prefect", "unheard")
    assert "is no address. Fix: write http://HOST:4200/api" in said


def test_a_server_of_the_users_is_found_without_importing_prefect(tmp_path: Path):
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://work/api"\n[profiles.home]\n')
    at = {"PREFECT_PROFILES_PATH": str(profiles)}
    assert configured_api_url(at) == "http://work/api"
    assert configured_api_url({**at, "PREFECT_PROFILE": "home"}) is None
    assert configured_api_url({**at, "PREFECT_API_URL": "http://env/api"}) == "http://env/api"
    assert configured_api_url({"PREFECT_HOME": str(tmp_path / "nowhere")}) is None


def _pages(port: int) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], dict(os.environ)


def test_a_local_server_is_shared_found_and_stopped(tmp_path: Path):
    server = ensure_server(tmp_path, 0, _pages)
    try:
        assert ensure_server(tmp_path, 0, _pages) == server == find_server(tmp_path)
        assert becomes(True, lambda: answers(server.url))
    finally:
        assert stop_server(tmp_path) == server
    assert not server.is_running()
    assert find_server(tmp_path) is None
    assert stop_server(tmp_path) is None


def test_a_record_of_a_server_that_is_gone_is_not_believed(tmp_path: Path):
    record = {"pid": os.getpid(), "port": 1, "born": "0"}  # a living process, but another one
    (tmp_path / "server.json").write_text(json.dumps(record))
    assert find_server(tmp_path) is None
