"""Stages are tried again after a cause that may pass by itself, and never after one that comes again."""

from __future__ import annotations

import errno
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore, Claim
from flows.build import stage_specs
from flows.compose import compose
from flows.errors import BadInput
from flows.launch import causes
from flows.launch.causes import explain_death, is_transient
from flows.pipeline import Driver, RunResult
from flows.preflight import preflight_run
from flows.signals import Stop
from flows.stage import StageSpec, run_stage

pytestmark = pytest.mark.timeout(120)
TOYS = "tests.flows.toy_stages_c"
IN_PROCESS = {"_target_": "flows.launch.inprocess.InProcess"}
ONE = {"_target_": "flows.launch.torchrun.Torchrun", "processes": 1}


class Tries:
    """One moody stage, driven; how often it was begun, and what was told."""

    def __init__(self, root: Path) -> None:
        self.root, self.events = root, []
        self.tally = root / "tally"

    def __call__(
        self, how: str, *, times: int = 1, retries: int = 2, launcher: Any = IN_PROCESS, **more: Any
    ) -> RunResult:
        settings = {"how": how, "times": times, "tally": str(self.tally)}
        spec = StageSpec("toy", f"{TOYS}.moody", settings=settings, launcher=launcher, retries=retries)
        store = ArtifactStore(self.root / "cache")
        return Driver(
            [spec],
            lambda spec, parents, launch, say: run_stage(spec, parents, store, launch, say),
            emit=self.events.append,
            allow=("components", TOYS),
            **{"retry_wait_s": 0.01, **more},
        ).run()

    @property
    def begun(self) -> int:
        return len(self.tally.read_text().splitlines())

    def warnings(self) -> list[str]:
        return [event["text"] for event in self.events if event.get("level") == "warning"]


@pytest.fixture
def tries(tmp_path: Path) -> Tries:
    return Tries(tmp_path)


@pytest.mark.parametrize("how", ["network", "from"])
def test_a_network_that_was_away_is_tried_again_and_the_run_is_done(tries: Tries, how: str):
    result = tries(how, times=2)
    assert (result.state, tries.begun) == ("done", 3)
    first, second = tries.warnings()
    assert "This may pass: trying again in 0.01 s (1 of 2)" in first
    assert "trying again in 0.02 s (2 of 2)" in second


@pytest.mark.parametrize("how", ["full", "wrong", "memory"])
def test_what_comes_again_is_not_tried_again(tries: Tries, how: str):
    result = tries(how)
    assert (result.state, tries.begun, tries.warnings()) == ("failed", 1, [])


def test_memory_that_ran_out_comes_with_its_remedy(tries: Tries):
    assert "Fix: smaller micro-batches (micro_batch_tokens)" in tries("memory").stages["toy"].why


def test_after_the_last_try_the_reason_stands_and_the_stage_has_failed(tries: Tries):
    result = tries("network", times=9)
    assert (result.state, tries.begun) == ("failed", 3)
    assert result.stages["toy"].why == "ConnectionResetError: [Errno 104] the other side is gone"


def test_retries_can_be_off(tries: Tries):
    assert tries("network", retries=0).state == "failed"
    assert tries.begun == 1


def test_a_worker_that_was_lost_is_replaced(tries: Tries):
    if causes.oom_kills() is None:
        pytest.skip("this kernel does not say whether memory ran out")
    result = tries("SIGKILL", launcher=ONE)
    assert (result.state, tries.begun) == ("done", 2)
    assert "worker 0 was killed (SIGKILL) from outside; memory had not run out. This may pass" in tries.warnings()[0]


def test_a_worker_that_was_lost_with_the_fork_server_is_replaced_by_one_of_a_new_server(tries: Tries):
    if causes.oom_kills() is None:
        pytest.skip("this kernel does not say whether memory ran out")
    result = tries("server", launcher=ONE)
    assert (result.state, tries.begun) == ("done", 2)
    assert "worker 0 was lost with the fork server, which was killed (SIGKILL) from outside" in tries.warnings()[0]


def test_a_worker_that_crashed_by_itself_is_not(tries: Tries):
    result = tries("SIGSEGV", launcher=ONE)
    assert (result.state, tries.begun) == ("failed", 1)
    assert "died of SIGSEGV" in result.stages["toy"].why


@pytest.mark.parametrize(
    ("exitcode", "before", "after", "says", "again"),
    [
        (-signal.SIGKILL, 3, 3, "from outside", True),
        (-signal.SIGKILL, 3, 4, "because memory ran out. Fix:", False),
        (-signal.SIGKILL, None, None, "probably because memory ran out. Fix:", False),
        (-signal.SIGHUP, 0, 0, "died of SIGHUP", True),
        (-signal.SIGABRT, 0, 0, "died of SIGABRT", False),
        (3, 0, 0, "exited with code 3", False),
        (255, 0, 0, "exited with code 255", False),
    ],
)
def test_what_a_death_means(exitcode: int, before: int | None, after: int | None, says: str, again: bool):
    text, transient = explain_death(exitcode, before, after)
    assert says in text
    assert transient is again


class Refused(Exception):
    """As HTTP clients raise it."""

    def __init__(self, status: int) -> None:
        self.response = type("Response", (), {"status_code": status})


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (OSError(errno.EIO, "I/O error"), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (TimeoutError("no answer"), True),
        (Refused(503), True),
        (OSError(errno.ENOSPC, "full"), False),
        (FileNotFoundError(errno.ENOENT, "no such file"), False),
        (PermissionError(errno.EACCES, "denied"), False),
        (Refused(404), False),
        (ValueError("x"), False),
    ],
)
def test_which_errors_pass_by_themselves(error: Exception, again: bool):
    assert is_transient(error) is again


def test_a_step_that_is_done_again_is_logged_once(tries: Tries):
    assert tries("network").state == "done"
    assert [event["step"] for event in tries.events if event["event"] == "metrics"] == [1, 2, 3]


def test_a_disk_error_while_publishing_is_tried_again(tries: Tries, monkeypatch: pytest.MonkeyPatch):
    commit, failed = Claim.commit, []

    def once(self: Claim, **what: Any) -> Any:
        if not failed:
            failed.append(True)
            raise OSError(errno.EIO, "cannot flush x: Input/output error")
        return commit(self, **what)

    monkeypatch.setattr(Claim, "commit", once)
    result = tries("none", times=0)
    assert (result.state, tries.begun) == ("done", 2)


def test_a_stop_ends_the_wait(tries: Tries):
    stop = Stop()
    timer = threading.Timer(0.5, stop.request)
    timer.start()
    begin = time.monotonic()
    tries("network", times=9, stop=stop, retry_wait_s=300)
    timer.join()
    assert time.monotonic() - begin < 100
    assert tries.begun <= 2


def test_how_often_is_a_setting_of_the_run_and_of_a_stage_and_no_part_of_a_key():
    specs = {spec.name: spec for spec in stage_specs(compose(["pipeline=smoke", "retries=1", "rl_1.retries=5"]))}
    assert (specs["rl_1"].retries, specs["rl_2"].retries) == (5, 1)
    assert "retries" not in specs["rl_1"].settings


@pytest.mark.parametrize("override", ["rl_1.retries=-1", "retries=often", "rl_1.retries=true"])
def test_a_count_that_is_none_is_refused(override: str):
    with pytest.raises(BadInput, match=r"retries: expects a whole number, 0 or more \(got "):
        stage_specs(compose(["pipeline=smoke", override]))


def test_a_wait_that_is_none_is_refused():
    with pytest.raises(BadInput, match=r"retry_wait_s: expects a number of seconds"):
        preflight_run(compose(["retry_wait_s=-1"]))
