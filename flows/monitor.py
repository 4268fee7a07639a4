"""The doctor during a run: it follows the driver's events, and names what goes wrong while there is time to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.artifacts import write_jsonl
from components.runtime import Inputs
from flows.launch.torchrun import cores

if TYPE_CHECKING:
    from components.artifacts import Claim
    from components.evaluation.doctor.finding import Finding
    from components.evaluation.doctor.read import Rollouts
    from components.evaluation.doctor.record import Record
    from components.evaluation.doctor.watch import Watch
    from flows.launch.events import Emit, Event
    from flows.stage import StageSpec

Launch = Callable[..., dict[str, Any]]
FINDINGS = "findings.jsonl"


class Monitor:
    """Listener that examines stages at work every few steps and emits a ``finding`` event for each new cause.

    `around` wraps the launch of a stage: before it, the monitor learns where the stage writes; after it, it takes a
    last look and keeps what it found as ``logs/findings.jsonl``, which is not part of the artifact's content. Nothing
    that goes wrong in here stops a run; it is said once.

    Args:
        specs: stages of the run, for their inputs and settings.
    """

    def __init__(self, specs: Sequence[StageSpec], emit: Emit) -> None:
        self._specs, self._emit = {spec.name: spec for spec in specs}, emit
        self._watched: dict[str, _Watched] = {}
        self._answers: dict[str, Path] = {}
        self._told: set[tuple[str, str]] = set()
        self._broken = False

    def around(self, launch: Launch) -> Launch:
        """``launch``, with the stage examined while it runs and once more when it ends."""

        def watched(spec: StageSpec, parents: Inputs, claim: Claim, *rest: Any) -> dict[str, Any]:
            self._guarded(lambda: self._begin(spec, parents, claim.draft))
            try:
                return launch(spec, parents, claim, *rest)
            finally:
                self._guarded(lambda: self._finish(spec.name))

        return watched

    def __call__(self, event: Event) -> None:
        """Follow one event of the driver."""
        stage = str(event.get("stage") or "")
        if event.get("event") == "metrics" and stage in self._watched:
            self._guarded(lambda: self._tell(self._watched[stage].step(event)))
        elif event.get("event") == "stage" and event.get("artifact"):
            self._guarded(lambda: self._evaluated(stage, Path(event["artifact"]["path"])))

    def _begin(self, spec: StageSpec, parents: Inputs, draft: Path) -> None:
        self._watched[spec.name] = watched = _Watched(spec, parents, draft)
        self._tell(watched.look())

    def _finish(self, stage: str) -> None:
        if (watched := self._watched.get(stage)) is not None:
            self._tell(watched.finish())

    def _evaluated(self, stage: str, path: Path) -> None:
        """An evaluation is there: compare those of the models before and after a stage that was watched."""
        from components.evaluation.doctor.read import ANSWERS, compare_held_out

        if not (path / ANSWERS).is_file() or stage not in self._specs:
            return
        self._answers[self._specs[stage].inputs.get("model", "")] = path / ANSWERS
        for name, watched in self._watched.items():
            before, after = self._answers.get(self._specs[name].inputs.get("model", "")), self._answers.get(name)
            if watched.record.groups and before is not None and after is not None and watched.compare_once():
                self._tell(compare_held_out(watched.record, before, after))

    def _tell(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            if (said := (finding.name, finding.evidence)) in self._told:
                continue  # of the machine rather than of a stage
            self._told.add(said)
            self._emit(
                {
                    "event": "finding",
                    "stage": finding.stage,
                    "step": finding.step,
                    "name": finding.name,
                    "severity": finding.severity,
                    "text": finding.line(),
                    "finding": finding.to_json(),
                }
            )

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            act()
        except Exception as error:
            self._broken = True
            text = f"the doctor cannot go on, the run does: {type(error).__name__}: {error}"
            self._emit({"event": "say", "stage": None, "text": text, "level": "warning"})


class _Watched:
    """One stage under observation. Events come in one thread, its end in another."""

    def __init__(self, spec: StageSpec, parents: Inputs, draft: Path) -> None:
        from components.evaluation.doctor import read, record, watch

        self.draft = draft
        self._lock = threading.Lock()
        self._ended = self._compared = False
        launcher = spec.launcher
        machine = {"cores": cores(), **{k: launcher[k] for k in ("processes", "threads") if k in launcher}}
        self.record: Record = record.Record(spec.name, spec.settings, machine=machine)
        data = parents.get("data")
        single = read.single_valued(None if data is None else data.path / "tasks" / "train.jsonl")
        self._watch: Watch = watch.Watch(self.record, single=single)
        self._rollouts: Rollouts = read.Rollouts(draft / "rollouts")
        for row in read.read_metrics(draft):  # of an earlier attempt that is resumed
            self._watch.log(row)

    def step(self, event: Mapping[str, Any]) -> list[Finding]:
        with self._lock:
            self._watch.log({"step": event["step"], **event["values"]})
            return self._examine() if self._watch.due and not self._ended else []

    def look(self) -> list[Finding]:
        with self._lock:
            return self._examine()

    def finish(self) -> list[Finding]:
        """The last look, from the files: events may still be on their way. Writes what was found in all."""
        from components.evaluation.doctor import read

        with self._lock:
            self._ended = True
            self.record.steps[:] = read.read_metrics(self.draft)
            self.record.machine = {**self.record.machine, **read.read_machine(self.draft)}
            new = self._examine()
            found = sorted(self._watch.found.values(), key=lambda finding: finding.step)
            file = self.draft / "logs" / FINDINGS
            if found:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_jsonl(file, [finding.to_json() for finding in found])
            else:
                file.unlink(missing_ok=True)
            return new

    def compare_once(self) -> bool:
        """True the first time it is asked."""
        first, self._compared = not self._compared, True
        return first

    def _examine(self) -> list[Finding]:
        for rows in self._rollouts.new():
            self._watch.sampled(rows)
        return self._watch.look()
