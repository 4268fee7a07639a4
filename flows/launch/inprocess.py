"""A stage as a plain call in the driver: breakpoints and debuggers work, a crash takes the driver with it."""

from __future__ import annotations

import bdb
import traceback
from typing import TYPE_CHECKING, Any

from components.runtime import Inputs, Interrupted, Out
from flows.launch import Context, StageFailed
from flows.launch.causes import in_words, is_transient
from flows.launch.worker import Job, call_stage

if TYPE_CHECKING:
    from components.artifacts import Claim
    from flows.stage import StageSpec


class InProcess:
    """Calls the stage function in this process, for debugging; the driver then runs stages one after the other."""

    in_process = True

    def __init__(self, *, threads: int = 1, processes: int = 1) -> None:
        if processes != 1:
            raise ValueError(f"launcher.processes={processes}: launcher=inprocess has one. Fix: launcher=torchrun")
        self.threads = threads

    def slots(self, capacity: int) -> int:
        return capacity

    def __call__(self, spec: StageSpec, parents: Inputs, claim: Claim, context: Context, /) -> dict[str, Any]:
        job = Job.of(spec, parents, claim.draft, threads=self.threads, allow=context.allow)
        out = Out(claim.draft, spec.name, spec.seed, emit=context.emit, stop_requested=context.stop.requested)
        try:
            with context.stop.raising_at_once():
                return call_stage(job, out)
        except (Interrupted, bdb.BdbQuit):
            raise
        except KeyboardInterrupt:
            raise Interrupted(f"{spec.name} was stopped at once") from None
        except Exception as error:
            reason, transient = in_words(error, claim.draft), is_transient(error)
            raise StageFailed(spec.name, reason, traceback.format_exc(), transient=transient) from error
