"""``r1flow run -m``: runs the arms of a sweep, so many at a time, and ends with the summary.

Runs share the store, so a stage they have in common is built once. One that fails doesn't stop the others. The same
command goes on with the same sweep: runs that are done and whose artifacts are all there are kept as they are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from components.artifacts import ArtifactStore
from components.tracking.processes import process_mark
from flows.compose import Config, compose
from flows.errors import BadInput, Problem
from flows.redact import redact
from flows.settings import Groups, config_roots
from flows.signals import Stop
from flows.sweep.forked import Forks, run_forked
from flows.sweep.grid import Request, expand, labels, read_request, repeated, repetitions, sweep_values
from flows.sweep.launch import Job, SweepLauncher, arm_environment, check_launcher, is_local, make_launcher, run_arm
from flows.sweep.record import SweepRecord, digest_of, now, opened
from flows.sweep.requests import ask_to_stop
from flows.sweep.summary import write_summary
from flows.sweep.track import SweepTracking
from flows.sweep_table import show_sweep

_STATES = {0: "done", 130: "interrupted", 143: "interrupted"}
_POLL_S = 0.05


@dataclass(frozen=True)
class Arm:
    """One run of a sweep: its number there, its overrides, and its configuration where that is composed already."""

    number: int
    overrides: Sequence[str]
    config: Config | None = None


class Source(Protocol):
    """Where arms come from. ``take`` gives the next one, None if there is none now; ``ended`` hears how it went."""

    total: int

    def take(self) -> Arm | None: ...

    def ended(self, arm: Arm, state: str) -> None: ...


def run_sweep(
    overrides: Sequence[str],
    config_dir: Path | None = None,
    *,
    jobs: int | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Run a sweep, ``jobs`` at a time; 0 if all runs succeeded, 1 if one failed, 130 or 143 if interrupted.

    Raises: BadInput if any run is not fit to run, or the sweep is at work already; then none is started.
    """
    request = read_request(overrides, config_dir)
    where = check_launcher(request.launcher, request.allow)
    say = _say_to(sys.stderr if as_json else sys.stdout)
    forks = Forks(possible=is_local(where))
    try:
        plan = (_search if request.search else _grid)(overrides, request, config_dir, forks)
    except BadInput:
        forks.end()
        raise
    artifacts, digest = plan.artifacts, plan.digest
    more = {"command": [redact(text) for text in overrides], "search": bool(request.search), "process": process_mark()}
    with opened(artifacts, digest, **more) as (record, is_there), Stop().installed() as stop:
        launcher = make_launcher(where, jobs, record.directory)
        source = plan.source(record)
        kept = record.count("done")
        told = f"going on, {kept} of {source.total} runs are done" if is_there else f"{source.total} runs"
        say(f"sweep {record.id}: {told}, {record.directory}")
        for note in plan.notes:
            say(f"note: {note}")
        to_files = launcher.to_files or launcher.jobs > 1 or as_json
        command = _command(record.id, config_dir, quiet=quiet)
        config = compose(request.fixed, config_dir)
        tracking = SweepTracking(config.root, plan.pipelines, record)
        pool = _Pool(record, launcher, source, stop, command, say, tracking.begin, forks, to_files=to_files)
        try:
            pool.run()
        finally:
            launcher.close()
            forks.end()
        done, failed = record.count("done"), record.count("failed")
        say(f"\nsweep {record.id}: {done} done, {failed} failed, {len(record.runs) - done - failed} not run")
        summary = write_summary(artifacts, record.id)
        if not as_json:
            show_sweep(artifacts, record.id)
        code = stop.exit_code if stop.requested() else int(failed > 0)
        state = "interrupted" if stop.requested() else "failed" if failed else "done"
        tracking.end(summary, state)
    if as_json:
        print(json.dumps({"sweep": record.id, "exit": code, **summary}, default=str))
    return code


class _Pool:
    def __init__(
        self,
        record: SweepRecord,
        launcher: SweepLauncher,
        source: Source,
        stop: Stop,
        command: Callable[[Arm], list[str]],
        say: Callable[[str], None],
        begin: Callable[[], None],
        forks: Forks,
        *,
        to_files: bool,
    ) -> None:
        self._record, self._launcher, self._source, self._stop = record, launcher, source, stop
        self._forks = forks
        self._command, self._say, self._begin, self._to_files = command, say, begin, to_files
        self._requests = record.directory / "stop"
        self._running: dict[int, tuple[Arm, Job]] = {}

    def run(self) -> None:
        """Until no arm is left, or, after a request to stop, until those at work have ended."""
        self._requests.unlink(missing_ok=True)
        passed_on = 0
        while True:
            while len(self._running) < self._launcher.jobs and not self._stop.requested():
                if (arm := self._source.take()) is None:
                    break
                self._start(arm)
            if not self._running:
                return
            wanted = int(self._stop.requested()) + int(self._stop.now.is_set())
            while passed_on < wanted:
                ask_to_stop(self._requests, self._stop.signum)
                passed_on += 1
            for number, (arm, job) in list(self._running.items()):
                if job.done():
                    del self._running[number]
                    self._settle(arm, job)
            time.sleep(_POLL_S)

    def _start(self, arm: Arm) -> None:
        label = self._record.runs[arm.number]["overrides"]
        self._say(f"\n[{arm.number + 1}/{self._source.total}] {label}")
        self._begin()
        log = str(self._record.directory / f"run-{arm.number}.log") if self._to_files else None
        where: list[Any] = [str(Path.cwd()), arm_environment(), log, str(self._requests)]
        start: Callable[..., int] = run_arm
        if self._forks.load():
            start = run_forked
            where.append(arm.config)
        self._record.update(arm.number, state="running", started=now(), ended=None, exit=None)
        self._running[arm.number] = arm, self._launcher.submit(start, self._command(arm), *where)

    def _settle(self, arm: Arm, job: Job) -> None:
        try:
            code, why = job.result(), ""
        except Exception as error:  # of the launcher: a node that went away, a job that was cancelled
            code, why = 1, f": {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        state = _STATES.get(code, "failed")
        self._record.update(arm.number, state=state, exit=code, ended=now())
        label = self._record.runs[arm.number]["overrides"]
        see = f", see {self._record.directory}/run-{arm.number}.log" if state == "failed" and self._to_files else ""
        self._say(f"[{arm.number + 1}/{self._source.total}] exit {code}: {label}{why}{see}")
        self._source.ended(arm, state)


class Grid:
    """All combinations. Those that a former sweep of the same command finished are kept if they are whole."""

    def __init__(self, record: SweepRecord, combinations: Sequence[Sequence[str]], prepared: Sequence[Any]) -> None:
        self.total = len(combinations)
        if not record.runs:
            record.runs += [{**names, "state": "waiting"} for names in labels(combinations)]
        self._waiting = []
        for number, (lines, each) in enumerate(zip(combinations, prepared, strict=True)):
            if record.runs[number]["state"] != "done" or not is_whole(each):
                record.runs[number]["state"] = "waiting"
                self._waiting.append(Arm(number, lines, each.config))
        record.write()

    def take(self) -> Arm | None:
        return self._waiting.pop(0) if self._waiting else None

    def ended(self, arm: Arm, state: str) -> None:
        """Nothing depends on it."""


def is_whole(prepared: Any) -> bool:
    """Whether a run of this would reuse every stage."""
    from flows.plan import make_plan

    plan = make_plan(prepared.specs, ArtifactStore(prepared.artifacts / "cache"), ignore_code=prepared.ignores_code)
    return all(stage.state == "reused" for stage in plan)


@dataclass(frozen=True)
class _Plan:
    """What a command line asks for: where its arms come from, where it is recorded, what to say, whose runs it has."""

    source: Callable[[SweepRecord], Source]
    artifacts: Path
    digest: str
    notes: Sequence[str]
    pipelines: Sequence[str]


def _grid(overrides: Sequence[str], request: Request, config_dir: Path | None, forks: Forks) -> _Plan:
    listed = expand(overrides, config_dir)
    checked = []
    for i, lines in enumerate(listed):
        checked.append(prepared_arm(f"run {i + 1}", lines, config_dir))
        forks.consider(checked[-1].specs)
        if i == 0 and len(listed) > 1 and not is_whole(checked[0]):
            forks.load()  # while the others are checked
    again = repetitions(checked)
    combinations = [lines for i, lines in enumerate(listed) if i not in again]
    prepared = [each for i, each in enumerate(checked) if i not in again]
    digest = digest_of([combinations, str(config_dir), str(Path.cwd())])
    notes = repeated([names["overrides"] for names in labels(listed)], again)
    pipelines = list(dict.fromkeys(each.config.pipeline for each in prepared))
    return _Plan(lambda record: Grid(record, combinations, prepared), prepared[0].artifacts, digest, notes, pipelines)


def _search(overrides: Sequence[str], request: Request, config_dir: Path | None, forks: Forks) -> _Plan:
    from flows.sweep.search import make_search

    groups = Groups.find(config_roots(config_dir))

    def prepare(lines: Sequence[str]) -> Any:
        prepared = prepared_arm("search", lines, config_dir, to_search=True)
        forks.consider(prepared.specs)
        return prepared

    search = make_search(request, groups, prepare)
    config = compose(request.fixed, config_dir)
    digest = digest_of([search.identity, str(config_dir), str(Path.cwd())])
    tried = sweep_values(request.swept["pipeline"], groups) if "pipeline" in request.swept else []
    pipelines = [text.partition("=")[2] for text in tried] or [config.pipeline]
    return _Plan(search.source, Path(config.root["artifacts"]), digest, search.notes, pipelines)


def prepared_arm(name: str, lines: Sequence[str], config_dir: Path | None, *, to_search: bool = False) -> Any:
    """The run of these overrides, checked. Raises: BadInput that says which run it is about."""
    from flows.run import prepare

    try:
        return prepare(lines, config_dir, to_search=to_search)
    except BadInput as error:
        where = f"{name} ({' '.join(map(redact, lines))})"
        raise BadInput([Problem(where, "", str(problem).rstrip(".")) for problem in error.problems]) from error


def _command(sweep: str, config_dir: Path | None, *, quiet: bool) -> Callable[[Arm], list[str]]:
    options = [*(["--config-dir", str(config_dir)] if config_dir else []), *(["--quiet"] if quiet else [])]

    def command(arm: Arm) -> list[str]:
        of_arm = ["--sweep", f"{sweep}/{arm.number}", "--leash"]
        return [sys.executable, "-m", "flows.cli", "run", *of_arm, *options, "--", *arm.overrides]

    return command


def _say_to(stream: Any) -> Callable[[str], None]:
    return lambda text: print(text, file=stream, flush=True)
