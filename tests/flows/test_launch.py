"""Launchers: collectives, errors, deaths, stops. Every test that could hang has a limit far above what it needs."""

from __future__ import annotations

import json
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from components.runtime import Interrupted
from flows.launch import Context, StageFailed, causes, make_launcher
from flows.launch.events import Fanout
from flows.launch.inprocess import InProcess
from flows.launch.torchrun import Torchrun, warm_up
from flows.signals import Stop
from flows.stage import StageSpec

pytestmark = pytest.mark.timeout(180)
TOYS = "tests.flows.toy_stages_c"
ALLOW = ("components", TOYS)
ROOT = Path(__file__).parents[2]


def launch(launcher: Any, function: str, store: ArtifactStore, *, stop: Stop | None = None, **settings: Any):
    """Metrics of a toy stage and the events it sent."""
    events: list[dict[str, Any]] = []
    spec = StageSpec("toy", f"{TOYS}.{function}", settings=settings)
    with store.claim("toy", "key") as claim:
        metrics = launcher(spec, {}, claim, Context(events.append, stop or Stop(), ALLOW))
    return metrics, events


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "cache")


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie nobody collected counts)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Any, limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(("processes", "expected"), [(1, 1.0), (2, 3.0)])
def test_ranks_sum_over_their_collective(store: ArtifactStore, processes: int, expected: float):
    metrics, events = launch(Torchrun(processes=processes), "rank_sum", store)
    assert metrics["sum"] == expected
    assert len(set(metrics["pids"])) == processes
    assert os.getpid() not in metrics["pids"]
    assert [event["event"] for event in events] == ["say", "progress", "resources"]  # of the main rank only
    assert all(20 < worker["peak_rss_mb"] < 2000 for worker in events[-1]["workers"])


def test_workers_get_the_threads_of_their_launcher(store: ArtifactStore):
    metrics, _ = launch(Torchrun(processes=1, threads=2), "rank_sum", store)
    assert (metrics["threads"], metrics["spin"]) == (2, "1000")


def test_in_process_runs_in_the_driver(store: ArtifactStore):
    metrics, events = launch(InProcess(), "rank_sum", store)
    assert metrics["pids"] == [os.getpid()]
    assert [event["event"] for event in events] == ["say", "progress"]


def test_a_raising_worker_fails_the_stage_with_its_traceback_and_ends_its_waiting_peer(store: ArtifactStore):
    begin = time.monotonic()
    with pytest.raises(StageFailed, match="worker 1 raised ValueError: the answer is 43") as caught:
        launch(Torchrun(processes=2), "fail", store, how="raise", rank=1)
    assert "in fail" in caught.value.details
    assert time.monotonic() - begin < 100


@pytest.mark.parametrize(
    ("how", "reason"),
    [("kill", r"was killed \(SIGKILL\)"), ("segfault", "died of SIGSEGV"), ("exit", "exited with code 3")],
)
def test_a_worker_that_dies_is_the_reason_and_not_its_peers_broken_connection(
    store: ArtifactStore, how: str, reason: str
):
    with pytest.raises(StageFailed, match=f"worker 0 .*{reason}") as caught:
        launch(Torchrun(processes=2), "fail", store, how=how, rank=0)
    assert "last words" in caught.value.details


def test_a_full_disk_is_named_although_the_workers_log_cannot_be_written(store: ArtifactStore):
    logs = store.draft_path("toy", "key") / "logs"
    for folder in (logs, logs.parent / "checkpoints" / "begun"):  # so that the draft is kept
        folder.mkdir(parents=True)
    (logs / "worker-0.log").symlink_to("/dev/full")
    with pytest.raises(StageFailed, match=r"worker 0 raised OSError.* No space left on device\. The disk") as caught:
        launch(Torchrun(processes=1), "fail", store, how="raise")
    assert "bytes are free in" in caught.value.reason
    assert "Fix: free some, or set artifacts=DIR" in caught.value.reason
    assert "in fail" in caught.value.details


def test_a_worker_that_ends_without_a_word_on_a_full_disk_is_put_down_to_it(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
):
    usage = SimpleNamespace(total=1 << 40, used=1 << 40, free=4096)
    monkeypatch.setattr(causes.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StageFailed, match=r"exited with code 3 .*The disk is full: 4,096 bytes are free in /.* Fix:"):
        launch(Torchrun(processes=1), "fail", store, how="exit")


def test_a_segfault_leaves_the_python_stack_in_the_log(store: ArtifactStore):
    with pytest.raises(StageFailed) as caught:
        launch(Torchrun(processes=1), "fail", store, how="segfault")
    assert "toy_stages_c.py" in caught.value.details


def test_in_process_errors_read_like_those_of_a_worker(store: ArtifactStore):
    with pytest.raises(StageFailed, match="ValueError: the answer is 43") as caught:
        launch(InProcess(), "fail", store, how="raise")
    assert "in fail" in caught.value.details


def test_a_stop_lets_all_ranks_finish_their_step_and_the_next_launch_goes_on_there(store: ArtifactStore):
    stop, launcher = Stop(), Torchrun(processes=2)
    spec = StageSpec("toy", f"{TOYS}.steps", settings={"n": 1000})

    def stop_at_step_3(event: dict[str, Any]) -> None:
        if event["event"] == "progress" and event["done"] == 3:
            stop.request()

    with store.claim("toy", "key") as claim, pytest.raises(Interrupted):
        launcher(spec, {}, claim, Context(stop_at_step_3, stop, ALLOW))
    at = int((store.draft_path("toy", "key") / "checkpoints" / "cursor").read_text())
    assert 3 <= at < 1000
    metrics, _ = launch(launcher, "steps", store, n=at + 2)
    assert metrics == {"done": at + 2, "began": at}


def test_a_stop_before_the_worker_has_its_handlers_is_not_lost(store: ArtifactStore):
    for delay_s in (0.0, 0.002, 0.01):
        stop = Stop()
        threading.Timer(delay_s, stop.request).start()
        with pytest.raises(Interrupted):
            launch(Torchrun(processes=2), "steps", store, stop=stop, n=1000)


def test_sigterm_to_one_worker_stops_all_ranks_at_the_same_step_and_may_be_tried_again(store: ArtifactStore):
    def terminate_one(event: dict[str, Any]) -> None:
        if event["event"] == "progress" and event["done"] == 3:
            os.kill(children()[0], signal.SIGTERM)

    spec = StageSpec("toy", f"{TOYS}.steps", settings={"n": 1000})
    with store.claim("toy", "key") as claim, pytest.raises(StageFailed, match="nobody asked the run to") as caught:
        Torchrun(processes=2)(spec, {}, claim, Context(terminate_one, Stop(), ALLOW))
    assert caught.value.transient
    at = int((store.draft_path("toy", "key") / "checkpoints" / "cursor").read_text())
    assert 3 <= at < 1000


def children() -> list[int]:
    """Processes of the fork server."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()]


def test_a_second_stop_kills_a_stage_that_does_not_listen(store: ArtifactStore, tmp_path: Path):
    stop, file = Stop(), tmp_path / "pids"

    def stop_twice() -> None:
        wait_until(file.exists)
        stop.request(signal.SIGINT)
        time.sleep(0.2)
        stop.request(signal.SIGINT)

    threading.Thread(target=stop_twice).start()
    with pytest.raises(Interrupted, match="killed"):
        launch(Torchrun(processes=2), "forever", store, stop=stop, file=str(file))
    assert all(gone(pid) for pid in json.loads(file.read_text()))
    assert stop.exit_code == 130


def test_a_second_ctrl_c_ends_a_stage_in_the_drivers_own_process_at_once(store: ArtifactStore, tmp_path: Path):
    stop, file = Stop(), tmp_path / "pids"

    def interrupt_twice() -> None:
        wait_until(file.exists)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    begin = time.monotonic()
    with stop.installed(), pytest.raises(Interrupted, match="stopped at once"):
        launch(InProcess(), "forever", store, stop=stop, file=str(file))
    thread.join()
    assert time.monotonic() - begin < 100


_DRIVER = """
import sys
from components.artifacts import ArtifactStore
from flows.launch import Context
from flows.launch.torchrun import Torchrun
from flows.signals import Stop
from flows.stage import StageSpec
if __name__ == "__main__":
    root, file, hog = sys.argv[1:]
    spec = StageSpec("toy", "tests.flows.toy_stages_c.forever", settings={"file": file, "hog": hog == "hog"})
    with ArtifactStore(root).claim("toy", "key") as claim:
        Torchrun(processes=2)(spec, {}, claim, Context(print, Stop(), ("tests",)))
"""


@pytest.mark.parametrize("mood", ["idle", "hog"])
def test_kill_9_of_the_driver_ends_its_workers_and_frees_the_lock(store: ArtifactStore, tmp_path: Path, mood: str):
    file, script = tmp_path / "pids", tmp_path / "driver.py"
    script.write_text(_DRIVER)
    command = [sys.executable, str(script), str(store.root), str(file), mood]
    driver = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert wait_until(file.exists, 120)
    workers = json.loads(file.read_text())
    assert not any(gone(pid) for pid in workers)
    driver.kill()
    driver.wait()
    waited: list[str] = []
    with store.claim("toy", "key", on_wait=waited.append):  # returns only when the last worker has let go of its files
        assert wait_until(lambda: all(gone(pid) for pid in workers), 60)


def test_the_fork_server_has_loaded_torch_but_started_no_threads(store: ArtifactStore):
    warm_up()
    launch(Torchrun(processes=1), "rank_sum", store)
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert "libtorch_cpu" in Path(f"/proc/{server}/maps").read_text()
    assert len(os.listdir(f"/proc/{server}/task")) == 1


def test_a_launcher_must_come_from_an_allowed_package():
    with pytest.raises(ValueError, match="allow"):
        make_launcher({"_target_": "os.system", "command": "true"})
    assert make_launcher({"_target_": "flows.launch.torchrun.Torchrun", "processes": 3}).slots(8) == 3


@pytest.mark.parametrize("settings", [{"processes": 0}, {"threads": 0}, {"device": "tpu"}])
def test_torchrun_refuses_settings_that_cannot_be(settings: dict[str, Any]):
    with pytest.raises(ValueError, match="launcher"):
        Torchrun(**settings)


def test_a_listener_that_raises_is_named_and_the_others_go_on():
    heard: list[Any] = []

    def broken(event: dict[str, Any]) -> None:
        raise ConnectionError("tracker is away")

    with Fanout([broken, heard.append]) as emit:
        emit({"event": "say", "stage": "a", "text": "1"})
        emit({"event": "say", "stage": "a", "text": "2"})
    assert [event["text"] for event in heard if event["stage"]] == ["1", "2"]
    assert [event["text"] for event in heard if not event["stage"]] == [
        "test_a_listener_that_raises_is_named_and_the_others_go_on.<locals>.broken failed and gets no further events: "
        "ConnectionError: tracker is away"
    ]
