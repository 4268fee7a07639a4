"""What runs in a worker process: one generic `work`, started once per rank."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import connection, parent_process
from pathlib import Path
from types import FrameType
from typing import Any

from components.runtime import Inputs, Interrupted, Out, Peers, StageArtifact
from flows.build import ALLOW_VARIABLE, ALLOWED, build, locate
from flows.launch.causes import in_words, is_transient

_F_SETSIG = 10  # Linux; absent from the fcntl module


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know, JSON-able.

    Attributes:
        inputs: input name → fields of the parent's `StageArtifact`.
        draft: the directory to write to.
        rendezvous: a file path no other job uses, where the ranks find each other.
        device: "cpu", "cuda", "mps" or "auto" (cuda where there is one).
        collective_timeout_s: how long a rank waits for its peers.
        allow: packages that components may come from.
    """

    stage: str
    target: str
    settings: Mapping[str, Any]
    seed: int
    inputs: Mapping[str, Mapping[str, Any]]
    draft: str
    world_size: int = 1
    threads: int = 1
    device: str = "auto"
    deterministic: bool = True
    rendezvous: str = ""
    collective_timeout_s: float = 1800.0
    allow: Sequence[str] = ALLOWED

    @classmethod
    def of(cls, spec: Any, parents: Inputs, draft: Path, **launch: Any) -> Job:
        """The job of one `StageSpec`."""
        inputs = {name: {**asdict(artifact), "path": str(artifact.path)} for name, artifact in parents.items()}
        return cls(spec.name, spec.target, spec.settings, spec.seed, inputs, str(draft), **launch)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))


def call_stage(job: Job, out: Out) -> dict[str, Any]:
    """Build the settings' components and call the stage function; its metrics."""
    inputs = {name: StageArtifact(**{**fields, "path": Path(fields["path"])}) for name, fields in job.inputs.items()}
    settings = build(job.settings, {name: artifact.path for name, artifact in inputs.items()}, allow=job.allow)
    return dict(locate(job.target, job.allow)(inputs, out, **settings) or {})


def work(job_json: str, rank: int, events: connection.Connection, lock_fd: int | None) -> None:
    """Run one rank of a stage and report how it ended over ``events``.

    ``lock_fd`` is a duplicate of the claim's lock. It is never closed: the lock is held until this process is gone, so
    that nobody else starts on a draft that is still being written.
    """
    stop = threading.Event()
    _die_with_driver()
    _listen_to_signals(stop)
    job = Job.from_json(job_json)
    os.environ[ALLOW_VARIABLE] = " ".join(package for package in job.allow if package not in ALLOWED)
    sending = threading.Lock()

    def send(message: Mapping[str, Any]) -> None:
        with sending:
            events.send_bytes(json.dumps(message, default=_plain).encode())

    started = time.perf_counter()
    try:
        _log_to(Path(job.draft) / "logs" / f"worker-{rank}.log")
        with _peers(job, rank) as peers:
            out = Out(Path(job.draft), job.stage, job.seed, peers, send, stop.is_set)
            metrics = call_stage(job, out)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        send(
            {
                "end": "done",
                "metrics": metrics if rank == 0 else {},
                "resources": {
                    "wall_s": time.perf_counter() - started,
                    "cpu_s": usage.ru_utime + usage.ru_stime,
                    "peak_rss_mb": usage.ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024),
                },
            }
        )
    except Interrupted:
        send({"end": "interrupted"})
    except BaseException as error:  # the driver raises it again, with this traceback
        failure = {"reason": in_words(error, Path(job.draft)), "traceback": traceback.format_exc()}
        send({"end": "failed", **failure, "transient": is_transient(error)})
        with contextlib.suppress(OSError):  # the disk of the log may be what failed
            traceback.print_exc()


def _plain(value: Any) -> Any:
    """JSON for numbers of numpy and torch."""
    return value.item() if hasattr(value, "item") else str(value)


def _die_with_driver() -> None:
    """End this process, with its children, once the driver is gone: by a thread, and by the kernel where it can.

    The thread alone would wait for a C function that keeps the interpreter to itself; the kernel does not.
    """
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # the driver and this function kill the group
    parent = parent_process()
    if parent is None:
        return
    alive = parent.sentinel
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(alive, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        connection.wait([alive])
        with contextlib.suppress(OSError):
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="driver-watch", daemon=True).start()


def _listen_to_signals(stop: threading.Event) -> None:
    """SIGTERM and SIGHUP ask the stage to stop at its next checkpoint; Ctrl-C is the driver's business."""

    def ask(signum: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})


def _log_to(file: Path) -> None:
    """Send what this process and its libraries print to a file: a live progress bar has the terminal."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(descriptor, number)
    os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
    faulthandler.enable(sys.stderr)


@contextlib.contextmanager
def _peers(job: Job, rank: int) -> Iterator[Peers]:
    """Threads, device and process group of one rank."""
    if job.device == "mps":
        os.environ["R1FLOW_DEVICE"] = "mps"  # models go there; see components.models.load.default_device
    device = _set_up_torch(job, rank) if job.world_size > 1 or "torch" in sys.modules else "cpu"
    if job.world_size == 1:
        yield Peers()
        return
    import torch.distributed as dist  # heavy, and only needed with more than one process

    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        init_method=f"file://{job.rendezvous}",
        rank=rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=job.collective_timeout_s),
    )
    yield Peers(rank, job.world_size)
    dist.destroy_process_group()


def _set_up_torch(job: Job, rank: int) -> str:
    """Apply threads, determinism and the rank's device; returns "cpu" or "cuda"."""
    import torch  # heavy; already loaded by the fork server
    from torch.utils import deterministic

    torch.set_num_threads(job.threads)
    found = 0 if job.device == "cpu" else torch.cuda.device_count()
    if job.device == "cuda" and found < job.world_size:
        raise ValueError(
            f"launcher.processes={job.world_size}, but this machine has {found} CUDA devices. "
            f"Fix: launcher.processes={max(found, 1)} or launcher.device=cpu"
        )
    device = "cuda" if 0 < job.world_size <= found else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # components take the GPU they see
    if found and device == "cpu" and rank == 0:
        print(f"on the CPU: {job.world_size} processes, {found} CUDA devices; launcher.processes={found} uses them")
    if job.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        setattr(deterministic, "fill_uninitialized_memory", False)  # noqa: B010 – a module property; costs a pass per torch.empty
    return device
