"""The driver: runs stages in the order of their inputs, independent ones at the same time.

It is plain Python and knows neither the store nor Prefect: `execute` makes one stage's artifact, and listeners hear
what happens.
"""

from __future__ import annotations

import graphlib
import itertools
import os
import queue
import select
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from components.artifacts.directory import remove_tree
from components.runtime import Inputs, Interrupted, StageArtifact
from flows.content import changed_source
from flows.launch import Context, Launcher, StageFailed, make_launcher
from flows.launch.causes import is_transient
from flows.launch.events import Emit
from flows.signals import Stop
from flows.slots import Slots

if TYPE_CHECKING:
    from components.artifacts import Claim
    from flows.stage import StageSpec

State = Literal["reused", "done", "failed", "skipped", "interrupted"]
# launch(spec, parents, claim) -> metrics: what `execute` calls if the stage has to be built.
Launch = Callable[..., dict[str, Any]]
Say = Callable[..., None]
Execute = Callable[["StageSpec", Inputs, Launch, Say], StageArtifact]

LONGEST_WAIT_S = 60.0  # between two tries of a stage
GRACE_S = 5.0  # after a stop, for stages that are not building (verifying, waiting for another run's lock)

_STOPPING = "stopping: running stages finish their step and write a checkpoint; a second signal kills them"
_TOLD_BY_THE_STATE = ("building", "rebuilding", "resuming")  # `why` of the event that follows when cores are free


@dataclass(frozen=True)
class StageOutcome:
    """How one stage ended; ``why`` is the error, or the stage that was missing."""

    state: State
    artifact: StageArtifact | None = None
    why: str = ""
    details: str = ""
    wall_s: float = 0.0


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        stages: outcome by stage name, in the order of the pipeline.
        stopped_by: exit code of an interrupted run, None otherwise.
        refused: the promotion gate let a stage's model not pass; what was built is kept.
    """

    stages: Mapping[str, StageOutcome]
    wall_s: float
    stopped_by: int | None = None
    refused: bool = False

    @property
    def state(self) -> Literal["done", "failed", "interrupted"]:
        states = {outcome.state for outcome in self.stages.values()}
        if self.stopped_by not in (None, 1):
            return "interrupted"
        return "failed" if self.refused or states & {"failed", "skipped"} else "done"

    @property
    def exit_code(self) -> int:
        """0, 1 if a stage failed or was refused, 130 or 143 if interrupted."""
        return self.stopped_by if self.stopped_by is not None else int(self.state == "failed")


class Driver:
    """Runs one pipeline.

    Args:
        execute: ``execute(spec, parents, launch, say)`` makes or finds one stage's artifact; it calls ``launch`` if the
            stage has to be built, and says in a line whether and why.
        capacity: cores that stages under construction may occupy together; a larger stage runs alone.
        retry_wait_s: before a stage that failed for a cause that may pass is tried again, doubled each time; how often
            is the stage's own ``retries``.
        allow: packages that components and launchers may come from.

    Raises:
        ValueError: an input that is no stage of the pipeline, or a cycle.
    """

    def __init__(
        self,
        specs: Sequence[StageSpec],
        execute: Execute,
        *,
        emit: Emit = lambda event: None,
        stop: Stop | None = None,
        capacity: int | None = None,
        retry_wait_s: float = 2.0,
        allow: Sequence[str] = ("components",),
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._order = _order(specs)
        self._places = {name: place for place, name in enumerate(self._specs)}
        self._execute, self._emit, self._stop = execute, emit, stop or Stop()
        self._context = Context(self._of_a_stage, self._stop, tuple(allow))
        self._retry_wait_s = retry_wait_s
        self._logged: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._slots = Slots(capacity or os.cpu_count() or 1)
        self._launchers: dict[str, Launcher] = {spec.name: make_launcher(spec.launcher, allow) for spec in specs}
        self._in_threads = not all(launcher.in_process for launcher in self._launchers.values())
        self._outcomes: dict[str, StageOutcome] = {}
        self._building: dict[str, float] = {}
        self._finished: queue.SimpleQueue[tuple[str, StageOutcome] | None] = queue.SimpleQueue()

    def run(self) -> RunResult:
        """Run everything that can run; never raises for what happens in a stage."""
        begin = time.perf_counter()
        shape = [{"stage": spec.name, "inputs": dict(spec.inputs)} for spec in self._specs.values()]
        self._emit({"event": "run", "state": "running", "stages": shape})
        self._stop.on_request = lambda: self._finished.put(None)  # a stop wakes the loop below
        self._start_ready()
        told = False
        while self._order.is_active():
            # Threads that only wait for another run's lock can't be interrupted; they are left behind.
            abandon = self._stop.requested() and not self._building
            try:
                message = self._finished.get(timeout=GRACE_S if abandon else None)
            except queue.Empty:
                break
            if message is not None:
                self._settle(*message)
                self._start_ready()
            elif not told:
                told = True
                self._emit({"event": "say", "stage": None, "text": _STOPPING, "level": "warning"})
        for name in self._specs.keys() - self._outcomes.keys():
            self._outcomes[name] = StageOutcome("interrupted", why="waited for a lock")
        interrupted = any(outcome.state == "interrupted" for outcome in self._outcomes.values())
        result = RunResult(
            {name: self._outcomes[name] for name in self._specs},
            time.perf_counter() - begin,
            self._stop.exit_code if interrupted else None,
            self._stop.refused,
        )
        self._emit({"event": "run", "state": result.state, "wall_s": result.wall_s, "exit_code": result.exit_code})
        return result

    def _start_ready(self) -> None:
        while ready := sorted(self._order.get_ready(), key=self._places.__getitem__):
            for name in ready:
                self._start(name)

    def _start(self, name: str) -> None:
        """Start a stage whose parents have ended; one whose parents left no artifact ends here."""
        spec = self._specs[name]
        lacking = [stage for stage in spec.inputs.values() if self._outcomes[stage].artifact is None]
        if self._stop.requested() or any(self._outcomes[stage].state == "interrupted" for stage in lacking):
            self._settle(name, StageOutcome("interrupted", why="not started"))
        elif lacking:
            self._settle(name, StageOutcome("skipped", why=f"needs {', '.join(sorted(set(lacking)))}"))
        elif self._in_threads:
            threading.Thread(
                target=lambda: self._finished.put((name, self._attempt(spec))), name=name, daemon=True
            ).start()
        else:
            self._settle(name, self._attempt(spec))

    def _settle(self, name: str, outcome: StageOutcome) -> None:
        self._outcomes[name] = outcome
        self._order.done(name)
        artifact = outcome.artifact
        self._emit(
            {
                "event": "stage",
                "stage": name,
                "state": outcome.state,
                "why": outcome.why,
                "details": outcome.details,
                "wall_s": outcome.wall_s,
                "artifact": artifact and {"key": artifact.key, "path": str(artifact.path), "digest": artifact.digest},
                "metrics": dict(artifact.metrics) if artifact else {},
            }
        )

    def _say(self, name: str, text: str, **more: Any) -> None:
        self._said[name] = text
        if not text.startswith(_TOLD_BY_THE_STATE):
            self._emit({"event": "say", "stage": name, "text": text, **more})

    def _of_a_stage(self, event: dict[str, Any]) -> None:
        """Pass on what a stage tells; a step that is done again after a fault was logged the first time."""
        if event.get("event") == "metrics":
            if event["step"] <= self._logged.get(event["stage"], -1):
                return
            self._logged[event["stage"]] = event["step"]
        self._emit(event)

    def _attempt(self, spec: StageSpec) -> StageOutcome:
        """Everything that may happen to a stage, as an outcome; tried again where the cause may pass by itself."""
        for number in itertools.count(1):
            outcome, transient = self._try(spec)
            if not transient or number > spec.retries or self._stop.requested():
                break
            wait_s = min(LONGEST_WAIT_S, self._retry_wait_s * 2 ** (number - 1))
            text = f"{outcome.why}. This may pass: trying again in {wait_s:g} s ({number} of {spec.retries})"
            self._emit({"event": "say", "stage": spec.name, "text": text, "level": "warning"})
            select.select([self._stop.asked], [], [], wait_s)  # a stop ends the wait
        return outcome

    def _try(self, spec: StageSpec) -> tuple[StageOutcome, bool]:
        """One attempt, and whether what made it fail may pass by itself."""
        parents = {
            name: artifact for name, stage in spec.inputs.items() if (artifact := self._outcomes[stage].artifact)
        }
        begin = time.perf_counter()
        state: State = "failed"
        artifact, why, details, transient = None, "", "", False
        try:
            artifact = self._execute(spec, parents, self._launch, partial(self._say, spec.name))
            state, why = ("reused", self._said.get(spec.name, "")) if artifact.cached else ("done", "")
        except Interrupted as error:
            state, why = "interrupted", str(error)
        except StageFailed as error:
            why, details, transient = error.reason, error.details, error.transient
        except Exception as error:
            why, details = f"{type(error).__name__}: {error}", traceback.format_exc()
            transient = is_transient(error)
        wall_s = time.perf_counter() - self._building.pop(spec.name, begin)
        return StageOutcome(state, artifact, why, details, wall_s), transient

    def _launch(self, spec: StageSpec, parents: Inputs, claim: Claim, *_: Any) -> dict[str, Any]:
        """Build a stage once cores are free for it; the metrics of its main process."""
        launcher = self._launchers[spec.name]
        held = launcher.slots(self._slots.capacity)
        asked = time.monotonic()
        self._slots.acquire(self._places[spec.name], held, self._stop)
        claim.waited_s = time.monotonic() - asked
        try:
            self._building[spec.name] = time.perf_counter()
            checkpoints = claim.draft / "checkpoints"
            resumed = checkpoints.is_dir() and any(checkpoints.iterdir())
            state = "resumed" if resumed else "building"
            self._emit({"event": "stage", "stage": spec.name, "state": state, "why": self._said.get(spec.name, "")})
            metrics = launcher(spec, parents, claim, self._context)
            if changed := changed_source(spec, self._context.allow):
                remove_tree(claim.draft)
                reason = (
                    f"what {changed} names was changed while the run went on; what the stage made of it is thrown away"
                )
                raise StageFailed(spec.name, f"{reason}. Fix: run the same command again")
            return metrics
        finally:
            self._slots.release(held)


def _order(specs: Sequence[StageSpec]) -> graphlib.TopologicalSorter[str]:
    names = {spec.name for spec in specs}
    for spec in specs:
        for name, stage in spec.inputs.items():
            if stage not in names:
                raise ValueError(
                    f"stage {spec.name}: input {name}={stage} is no stage. Stages: {', '.join(sorted(names))}"
                )
    order = graphlib.TopologicalSorter({spec.name: set(spec.inputs.values()) for spec in specs})
    try:
        order.prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"stages form a cycle: {' → '.join(error.args[1])}") from error
    return order
