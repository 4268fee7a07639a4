"""N processes on this machine that run one stage together, forked from a server that has torch loaded already."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.runtime import Inputs, Interrupted
from flows.launch import Context, StageFailed
from flows.launch.causes import explain_death, is_transient, oom_kills, short_of_space
from flows.launch.devices import cuda_devices
from flows.launch.worker import Job, work

if TYPE_CHECKING:
    from components.artifacts import Claim
    from flows.launch.events import Emit
    from flows.signals import Stop
    from flows.stage import StageSpec

METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # forking after torch is loaded is safe on Linux only
LAST_WORDS_S = 1.0  # after one worker failed, the others may still report; then they are killed
LINGER_S = 10.0  # between a worker's last message and its exit
LOG_LINES = 60


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warm_up() -> None:
    """Start the fork server; it loads torch and transformers in the background (4 CPU-seconds). Returns at once.

    Called when it is known that something has to be built; launching does it otherwise.
    """
    if METHOD == "forkserver":
        multiprocessing.forkserver.set_forkserver_preload(["flows.launch.warm"])
        with room_for_sockets():
            multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def room_for_sockets() -> Iterator[None]:
    """A path of a socket holds 107 bytes; where the directory for temporary files leaves too few, take ``/tmp``."""
    chosen = tempfile.gettempdir()
    if len(os.fsencode(chosen)) > 107 - len("/pymp-12345678/listener-12345678") and os.access("/tmp", os.W_OK):
        tempfile.tempdir = "/tmp"
    try:
        multiprocessing.util.get_temp_dir()  # made once a process, at its first use
        yield
    finally:
        tempfile.tempdir = chosen


@dataclass
class _Worker:
    """One rank as the driver sees it.

    ``end`` is its last message, ``None`` while it has not sent one; ``server`` the pid of the fork server it is from.
    """

    rank: int
    process: Any
    events: Connection
    server: int | None = None
    end: dict[str, Any] | None = None
    ended_at: float = 0.0
    killed: bool = False

    def open_events(self) -> list[Connection]:
        return [] if self.events.closed else [self.events]

    def receive(self, emit: Emit) -> None:
        """Pass on all events that have arrived."""
        try:
            while not self.events.closed and self.events.poll():
                message = json.loads(self.events.recv_bytes())
                if "end" in message:
                    self.end, self.ended_at = message, time.monotonic()
                else:
                    emit(message)
        except (EOFError, OSError):
            self.events.close()

    def died(self) -> bool:
        """Gone without a last message, and not by the driver's hand."""
        return self.end is None and not self.killed and self.process.exitcode is not None

    def failed(self) -> bool:
        return self.died() or (self.end is not None and self.end["end"] == "failed")

    def orphaned(self) -> bool:
        """Whether the fork server has ended: only that knows a worker's exit code, which then reads 255 at once."""
        if self.server is None or self.process.exitcode != 255:
            return False
        patience = time.monotonic() + LAST_WORDS_S  # a dying process closes its files first
        while not (ended := _has_ended(self.server)) and time.monotonic() < patience:
            time.sleep(0.01)
        return ended

    def end_orphan(self) -> None:
        """Kill a worker that `multiprocessing` can no longer reach, and wait until it is gone."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(EOFError, OSError):
            while self.events.poll(LINGER_S):
                self.events.recv_bytes()

    def terminate(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the worker and the processes it started."""
        self.killed = self.end is None
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


@dataclass
class Torchrun:
    """Runs a stage in ``processes`` processes of ``threads`` threads each; gloo on CPU, NCCL on GPU.

    Args:
        device: "cpu", "cuda" or "auto"; with CUDA every process has a device of its own. "mps": Apple's GPU, one
            process; for models with transformers' own forward, and not tested.
        deterministic: choose deterministic kernels where torch has them.
        collective_timeout_s: how long a rank waits for its peers before it fails.
    """

    processes: int = 2
    threads: int = 1
    device: str = "auto"
    deterministic: bool = True
    collective_timeout_s: float = 1800.0
    in_process: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for name in ("processes", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"launcher.{name} must be at least 1, got {getattr(self, name)}")
        if self.device not in ("cpu", "cuda", "mps", "auto"):
            raise ValueError(f"launcher.device must be cpu, cuda, mps or auto, got {self.device}")

    def slots(self, capacity: int) -> int:
        """Cores occupied; with a GPU asked for, everything: two stages do not share its memory."""
        return capacity if self.device in ("cuda", "mps") else min(self.processes * self.threads, capacity)

    def __call__(self, spec: StageSpec, parents: Inputs, claim: Claim, context: Context, /) -> dict[str, Any]:
        emit, stop = context.emit, context.stop
        stop.check()
        with tempfile.TemporaryDirectory(prefix="r1flow-") as scratch:
            job = Job.of(
                spec,
                parents,
                claim.draft,
                world_size=self.processes,
                threads=self.threads,
                device=self.device,
                deterministic=self.deterministic,
                rendezvous=str(Path(scratch) / "rendezvous"),
                collective_timeout_s=self.collective_timeout_s,
                allow=context.allow,
            )
            crew: list[_Worker] = []
            oom_before = oom_kills()
            try:
                for rank in range(self.processes):
                    crew.append(_start(job, rank, claim.lock_fd))
                _watch(crew, emit, stop)
            finally:
                for worker in crew:
                    if worker.process.exitcode is None:
                        worker.kill()
                        worker.process.join()
                    elif worker.died() and worker.orphaned():
                        worker.end_orphan()
                    worker.events.close()
            return _conclude(job, crew, emit, stop, oom_before)


def torchrun_check(settings: Mapping[str, Any]) -> list[str]:
    """What preflight can say: the devices that are asked for are there."""
    processes = settings.get("processes", 2)
    if settings.get("device") == "mps" and processes > 1:
        return [f"device: mps is one device for {processes} processes. Fix: set launcher.processes=1"]
    if settings.get("device") != "cuda" or (found := cuda_devices()) is None or found >= processes:
        return []
    fix = f"processes={found} uses what there is" if found else "set launcher.device=cpu, or auto"
    return [f"device: cuda for {processes} processes, and this machine has {found} CUDA devices. Fix: {fix}"]


@dataclass(frozen=True)
class _Descriptor:
    """A file descriptor that is duplicated into the process it is sent to, where it arrives as a plain number."""

    number: int

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _received, (DupFd(self.number),)


def _received(duplicate: Any) -> int:
    number = duplicate.detach()
    os.set_inheritable(number, False)
    return number


def _start(job: Job, rank: int, lock_fd: int | None) -> _Worker:
    warm_up()
    context = multiprocessing.get_context(METHOD)
    receive, send = context.Pipe(duplex=False)
    lock = None if lock_fd is None else _Descriptor(lock_fd)
    process = context.Process(target=work, args=(job.to_json(), rank, send, lock), name=f"{job.stage}-{rank}")
    try:
        process.start()
    except (OSError, EOFError) as error:
        receive.close()
        reason = f"could not start worker {rank}: {type(error).__name__}: {error}"
        raise StageFailed(job.stage, reason, transient=is_transient(error) or isinstance(error, EOFError)) from error
    finally:
        send.close()  # only the worker keeps the writing end, so that its death reads as end of file
    return _Worker(rank, process, receive, _server_pid())


def _has_ended(server: int) -> bool:
    """Whether that fork server has ended; it is left for `ensure_running` to collect."""
    try:
        ended = os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
    return ended or _server_pid() != server


def _server_pid() -> int | None:
    """Of the fork server that runs now; `multiprocessing` has no public name for it."""
    return getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)  # type: ignore[attr-defined]


def _watch(crew: list[_Worker], emit: Emit, stop: Stop) -> None:
    """Pass events on until every worker is gone. Blocks; wakes for an event, an exit, a signal or a deadline."""
    asked = False
    deadline: float | None = None
    while alive := [worker for worker in crew if worker.process.exitcode is None]:
        handles: list[Any] = [handle for worker in alive for handle in (worker.process.sentinel, *worker.open_events())]
        handles += [] if stop.now.is_set() else [stop.now if asked else stop.asked]
        wait(handles, None if deadline is None else max(0.0, deadline - time.monotonic()))
        for worker in crew:
            worker.receive(emit)
        if stop.requested() and not asked:
            asked = True
            for worker in alive:
                worker.terminate()
        if stop.now.is_set() or (deadline is not None and time.monotonic() >= deadline):
            for worker in alive:
                worker.kill()
        if deadline is None and any(worker.failed() for worker in crew):
            deadline = time.monotonic() + LAST_WORDS_S
        elif deadline is None and all(worker.end is not None for worker in crew):
            deadline = time.monotonic() + LINGER_S
    for worker in crew:
        worker.receive(emit)


def _conclude(job: Job, crew: list[_Worker], emit: Emit, stop: Stop, oom_before: int | None) -> dict[str, Any]:
    """Metrics of rank 0 if all is well; otherwise the first cause: a death before an error that followed from it."""
    dead = [worker for worker in crew if worker.died()]
    failed = sorted((worker for worker in crew if worker.failed() and worker.end), key=lambda worker: worker.ended_at)
    if stop.now.is_set() or (stop.requested() and any(worker.process.exitcode == -signal.SIGTERM for worker in dead)):
        raise Interrupted(f"{job.stage} was killed")
    if dead:
        worker = dead[0]
        death, transient = explain_death(worker.process.exitcode, oom_before, oom_kills(), orphaned=worker.orphaned())
        reason = " ".join(filter(None, [f"worker {worker.rank} {death}.", short_of_space(Path(job.draft))]))
        log = _log_tail(Path(job.draft), worker.rank)
        raise StageFailed(job.stage, reason.removesuffix("."), log, transient=transient)
    if failed:
        end = failed[0].end or {}
        reason = f"worker {failed[0].rank} raised {end['reason']}"
        raise StageFailed(job.stage, reason, end["traceback"], transient=end["transient"])
    if any(worker.end is not None and worker.end["end"] == "interrupted" for worker in crew):
        if stop.requested():
            raise Interrupted(f"{job.stage} stopped at a checkpoint")
        reason = "a worker was told to stop (SIGTERM or SIGHUP), though nobody asked the run to"
        raise StageFailed(job.stage, reason, transient=True)
    resources = [(worker.end or {})["resources"] for worker in crew]
    _record(job, resources)
    emit({"event": "resources", "stage": job.stage, "workers": resources})
    return (crew[0].end or {})["metrics"]


def _log_tail(draft: Path, rank: int) -> str:
    log = draft / "logs" / f"worker-{rank}.log"
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"End of {log}:", *(line[:300] for line in lines)])
    return ""


def _record(job: Job, resources: list[dict[str, float]]) -> None:
    """Time and memory per worker, kept with the artifact's logs."""
    file = Path(job.draft) / "logs" / "workers.json"
    launch = {"processes": job.world_size, "threads": job.threads, "cores": cores(), "workers": resources}
    file.write_text(json.dumps(launch, indent=1) + "\n")
