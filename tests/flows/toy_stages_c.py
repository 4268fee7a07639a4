"""Stages for the tests of drivers and launchers: small enough to see at once what they should do."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from typing import Any

from components.runtime import Inputs, Interrupted, Out


def count(inputs: Inputs, out: Out, *, amount: int = 1) -> dict[str, Any]:
    """The amount plus whatever the inputs counted."""
    total = amount + sum(int((artifact.path / "total").read_text()) for artifact in inputs.values())
    if out.peers.is_main:
        (out.path / "total").write_text(str(total))
    return {"total": total}


def rank_sum(inputs: Inputs, out: Out) -> dict[str, Any]:
    """Sum over ranks of rank + 1, by a collective; and what each process was set up with."""
    import torch

    value = torch.tensor([out.peers.rank + 1.0])
    out.peers.all_reduce(value)
    out.say("summed")
    out.progress(1, 1)
    pids = out.peers.gather(os.getpid())
    return {"sum": value.item(), "pids": pids, "threads": torch.get_num_threads(), "spin": os.getenv("GOMP_SPINCOUNT")}


def steps(inputs: Inputs, out: Out, *, n: int, step_s: float = 0.05) -> dict[str, Any]:
    """Count to ``n`` with a checkpoint when asked to stop."""
    cursor = out.checkpoints / "cursor"
    done = int(cursor.read_text()) if cursor.exists() else 0
    began = done
    while done < n:
        if out.should_stop():
            if out.peers.is_main:
                out.checkpoints.mkdir(parents=True, exist_ok=True)
                cursor.write_text(str(done))
            raise Interrupted(f"at step {done}")
        time.sleep(step_s)
        done += 1
        out.progress(done, n)
    return {"done": done, "began": began}


def sleep(inputs: Inputs, out: Out, *, seconds: float) -> dict[str, Any]:
    """Its own begin and end on the machine's monotonic clock."""
    begin = time.monotonic()
    time.sleep(seconds)
    return {"begin": begin, "end": time.monotonic()}


def fail(inputs: Inputs, out: Out, *, how: str, rank: int = 0) -> dict[str, Any]:
    """Go wrong on one rank while the others wait for it in a collective."""
    if out.peers.rank == rank:
        print("last words")
        match how:
            case "raise":
                raise ValueError("the answer is 43")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(3)
    out.peers.barrier()
    return {}


def forever(inputs: Inputs, out: Out, *, file: str, hog: bool = False) -> dict[str, Any]:
    """Write the ranks' pids to ``file`` and never end; ``hog`` keeps the interpreter lock meanwhile."""
    pids = out.peers.gather(os.getpid())
    if out.peers.is_main:
        with open(file + ".tmp", "w") as handle:
            json.dump(pids, handle)
        os.rename(file + ".tmp", file)
    if hog:
        import re

        re.fullmatch(r"(a+)+b", "a" * 60)  # backtracks for years inside one C call
    while True:
        time.sleep(1)


def moody(inputs: Inputs, out: Out, *, how: str, times: int, tally: str, steps: int = 3) -> dict[str, Any]:
    """Log ``steps`` metrics, with a checkpoint after each, and go wrong at the second step the first ``times`` times.

    ``tally`` has a line for each time it was begun.
    """
    with open(tally, "a+") as file:
        file.write("begun\n")
        file.seek(0)
        tries = len(file.readlines())
    for step in range(1, steps + 1):
        if step == 2 and tries <= times:
            match how:
                case "network":
                    raise ConnectionResetError(errno.ECONNRESET, "the other side is gone")
                case "full":
                    raise OSError(errno.ENOSPC, "No space left on device")
                case "wrong":
                    raise ValueError("the answer is 43")
                case "memory":
                    raise MemoryError
                case "server":  # kills the process this one was forked from, and lives on
                    os.kill(os.getppid(), signal.SIGKILL)
                    time.sleep(30)
                case "from":
                    raise RuntimeError("could not fetch") from TimeoutError("no answer")
                case number:
                    os.kill(os.getpid(), getattr(signal, number))
                    time.sleep(30)
        out.log(step, {"loss": 1.0 / step})
    return {"tries": tries}
