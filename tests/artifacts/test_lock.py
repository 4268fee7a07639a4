"""One builder at a time; a dead one never blocks."""

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from multiprocessing.reduction import DupFd
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore, lock
from components.artifacts.lock import acquire


def build_or_reuse(root: Path, log: Path) -> None:
    with ArtifactStore(root).claim("rl", "k") as claim:
        if claim.existing() is None:
            with log.open("a") as file:
                file.write("built\n")
            (claim.draft / "x").write_text("1")
            time.sleep(0.3)
            claim.commit(metrics={}, parents={}, spec={}, wall_s=0)


def hold(store: ArtifactStore) -> int:
    """A forked process that claims, checkpoints step 3 and then hangs; returns once it holds the claim."""
    ready, signal_ready = os.pipe()
    if (pid := os.fork()) == 0:
        with store.claim("rl", "k") as claim:
            (claim.draft / "checkpoints" / "step-000003").mkdir(parents=True)
            (claim.draft / "checkpoints" / "step-000003" / "state.json").write_text("{}")
            os.write(signal_ready, b"1")
            time.sleep(60)
        os._exit(0)
    os.close(signal_ready)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    return pid


def wait_until(condition, seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.01)


def test_processes_racing_for_one_key_build_it_once(tmp_path: Path):
    context = get_context("fork")
    racers = [context.Process(target=build_or_reuse, args=(tmp_path / "cache", tmp_path / "log")) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(20)
        assert racer.exitcode == 0
    assert (tmp_path / "log").read_text() == "built\n"


def test_threads_racing_for_one_key_build_it_once(tmp_path: Path):
    racers = [threading.Thread(target=build_or_reuse, args=(tmp_path / "cache", tmp_path / "log")) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(20)
    assert (tmp_path / "log").read_text() == "built\n"


def test_different_keys_do_not_wait_for_each_other(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    with store.claim("rl", "a"), store.claim("rl", "b"), store.claim("sft", "a"):
        pass


def test_a_waiter_is_told_whom_it_waits_for_and_goes_on_in_the_same_draft_when_the_holder_is_killed(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    pid = hold(store)
    said: list[str] = []
    got: list[tuple[float, int | None, bool]] = []

    def wait() -> None:
        with store.claim("rl", "k", on_wait=said.append) as claim:
            got.append((time.monotonic(), claim.step, (claim.draft / "checkpoints/step-000003/state.json").exists()))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: said)
    assert f"waiting for pid {pid} on {socket.gethostname()}, since 2" in said[0]
    assert "working on rl/k" in said[0]
    assert not got
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    waiter.join(10)
    assert got[0][1:] == (3, True)
    assert got[0][0] - killed < 2  # polled 20 times a second
    assert re.fullmatch(rf"waited \d+\.\d s for pid {pid} on .*", said[1])
    assert len(said) == 2


def test_a_lock_file_left_by_a_dead_process_blocks_nobody(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    pid = hold(store)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    said: list[str] = []
    with store.claim("rl", "k", on_wait=said.append):
        pass
    assert said == []


def test_a_deleted_lock_file_admits_no_second_builder(tmp_path: Path):
    store, told, found = ArtifactStore(tmp_path / "cache"), [], []

    def second() -> None:
        with store.claim("s", "k", on_wait=told.append) as claim:
            found.append(claim.existing())

    with store.claim("s", "k") as claim:
        (claim.draft / "x").write_text("1")
        store.lock_path("s", "k").unlink()
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: told)
        assert not found
        made = claim.commit(metrics={}, parents={}, spec={}, wall_s=0)
    thread.join(20)
    assert "its lock file was deleted" in told[0]
    assert [artifact.digest for artifact in found] == [made.digest]


def test_a_waiter_does_not_take_the_lock_of_a_file_that_was_replaced_meanwhile(tmp_path: Path):
    path, got, told = tmp_path / "k.lock", [], []
    first = lock.acquire(path, "s/k")
    thread = threading.Thread(target=lambda: got.append(lock.acquire(path, "s/k", told.append)))
    thread.start()
    wait_until(lambda: told)
    path.unlink()
    third = lock.acquire(path, "s/k", block=False)
    assert first is not None and third is not None
    os.close(first)
    time.sleep(0.2)
    assert not got
    os.close(third)
    thread.join(20)
    assert lock.is_at(got[0], path)
    os.close(got[0])


def test_what_was_built_where_lock_and_draft_were_taken_away_is_not_published(tmp_path: Path):
    store = ArtifactStore(tmp_path / "cache")
    with store.claim("s", "k") as claim:
        (claim.draft / "x").write_text("1")
        store.lock_path("s", "k").unlink()
        claim.draft.rename(tmp_path / "away")
        with store.claim("s", "k") as other:
            (other.draft / "x").write_text("2")
            with pytest.raises(OSError, match=r"Not published\. Fix: leave lock files alone") as caught:
                claim.commit(metrics={}, parents={}, spec={}, wall_s=0)
            assert caught.value.errno == errno.ESTALE  # tried again, and then what the other one made is found
            other.commit(metrics={}, parents={}, spec={}, wall_s=0)
    found = store.find("s", "k")
    assert found is not None
    assert (found.path / "x").read_text() == "2"


def test_a_worker_with_a_copy_of_the_descriptor_keeps_the_lock_after_the_claim_ends(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    lock = tmp_path / "rl" / "k.lock"
    with store.claim("rl", "k") as claim:
        worker = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(claim.lock_fd,))
    assert acquire(lock, "rl/k", block=False) is None
    worker.kill()
    worker.communicate()
    fd = acquire(lock, "rl/k", block=False)
    assert fd is not None
    os.close(fd)


def test_a_spawned_worker_can_be_given_a_copy_of_the_descriptor(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    with store.claim("rl", "k") as claim:
        worker = context.Process(target=_start_with_copy, args=(theirs, _Copy(claim.lock_fd)), daemon=True)
        worker.start()
        assert mine.recv() == os.fstat(claim.lock_fd).st_ino
    assert acquire(tmp_path / "rl" / "k.lock", "rl/k", block=False) is None
    worker.kill()
    worker.join()
    fd = acquire(tmp_path / "rl" / "k.lock", "rl/k", block=False)
    assert fd is not None
    os.close(fd)


class _Copy:
    """Pickles a descriptor while a process is being started."""

    def __init__(self, fd: int):
        self.fd = fd

    def __reduce__(self):
        return _detach, (DupFd(self.fd),)


def _detach(copy) -> int:
    return copy.detach()


def _start_with_copy(ready, fd: int) -> None:
    ready.send(os.fstat(fd).st_ino)
    time.sleep(60)


def test_an_unrelated_child_does_not_keep_the_lock(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    with store.claim("rl", "k"):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    # The child's exec has closed its copy; the kernel lets go of the lock a moment later.
    wait_until(lambda: (fd := acquire(tmp_path / "rl" / "k.lock", "rl/k", block=False)) and not os.close(fd))
    child.kill()
    child.communicate()


def test_a_waiter_learns_that_the_holder_died_but_its_worker_lives(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    ready, signal_ready = os.pipe()
    if (pid := os.fork()) == 0:
        with store.claim("rl", "k") as claim:
            worker = subprocess.Popen(["sleep", "60"], pass_fds=(claim.lock_fd,))
            os.write(signal_ready, str(worker.pid).encode())
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    worker_pid = int(os.read(ready, 20))
    said: list[str] = []
    waiter = threading.Thread(target=lambda: store.claim("rl", "k", on_wait=said.append).__enter__())
    waiter.start()
    wait_until(lambda: said)
    os.kill(worker_pid, signal.SIGKILL)
    waiter.join(5)
    assert not waiter.is_alive()
    assert f"pid {pid} on" in said[0]
    assert "it has ended; processes it started have not" in said[0]


def test_a_waiting_main_thread_can_be_interrupted(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    code = (
        "from components.artifacts import ArtifactStore\nwith ArtifactStore(%r).claim('rl', 'k', on_wait=print): pass"
    )
    with store.claim("rl", "k"):
        root = Path(__file__).parents[2]
        command = [sys.executable, "-u", "-c", code % str(tmp_path)]
        waiter = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert waiter.stdout is not None
        assert "waiting for" in waiter.stdout.readline()
        waiter.send_signal(signal.SIGINT)
        _, errors = waiter.communicate(timeout=10)
    assert "KeyboardInterrupt" in errors


def test_a_file_system_without_locks_is_named_with_a_remedy(tmp_path: Path, monkeypatch):
    def no_locks(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match=r"k\.lock: this file system has no locks.*local disk"):
        ArtifactStore(tmp_path).claim("rl", "k").__enter__()
