"""``r1flow run``: compose, check, drive, record."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.runtime import StageArtifact
from flows.build import ALLOW_VARIABLE, ALLOWED, build, stage_specs
from flows.compose import Config, compose
from flows.content import with_content
from flows.errors import BadInput, Problem, errors
from flows.measures import is_asked_for, objective_problems
from flows.notes import notes
from flows.objective import read_objective
from flows.place import room_problems
from flows.preflight import preflight, preflight_run
from flows.redact import redact
from flows.stage import StageSpec, run_stage

Listener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Prepared:
    """A run that has passed all checks."""

    config: Config
    specs: Sequence[StageSpec]
    warnings: Sequence[Problem] = ()

    @property
    def artifacts(self) -> Path:
        return Path(self.config.root["artifacts"])

    @property
    def allow(self) -> tuple[str, ...]:
        return tuple(self.config.root.get("allow") or ())

    @property
    def ignores_code(self) -> bool:
        """Whether artifacts of other source files are good enough (``cache.code=ignore``)."""
        return (self.config.root.get("cache") or {}).get("code") == "ignore"


def prepare(
    overrides: Sequence[str], config_dir: Path | None = None, *, to_plan: bool = False, to_search: bool = False
) -> Prepared:
    """Compose and check a run; nothing is built.

    Args:
        to_plan: nothing is going to be, so that artifacts need only be readable.
        to_search: its objective is needed, the usual one too.

    Raises: BadInput.
    """
    config = compose(overrides, config_dir)
    preflight_run(config)
    allow = tuple(config.root.get("allow") or ())
    warnings: list[Problem] = []
    artifacts = Path(config.root["artifacts"])
    specs = preflight(stage_specs(config), allow=allow, artifacts=artifacts, to_read=to_plan, warn=warnings.append)
    problems = list(objective_problems(config.root, config.overrides, specs, needed=to_search))
    if wrong := errors(problems):
        raise BadInput(wrong)
    warnings += problems
    prepared = Prepared(config, with_content(specs, (*ALLOWED, *allow)), warnings)
    if not to_plan and (problems := [*room_problems(artifacts)]) and _builds_something(prepared):
        raise BadInput(problems)
    return prepared


def _builds_something(prepared: Prepared) -> bool:
    from components.artifacts import ArtifactStore
    from flows.plan import make_plan

    store = ArtifactStore(prepared.artifacts / "cache")
    plan = make_plan(prepared.specs, store, ignore_code=prepared.ignores_code)
    return any(stage.state != "reused" for stage in plan)


def run(
    overrides: Sequence[str],
    config_dir: Path | None = None,
    *,
    quiet: bool = False,
    sweep: str = "",
    as_json: bool = False,
    listener: Listener | None = None,
) -> int:
    """Run a pipeline; the exit code: 0, 1 if a stage failed or the gate stopped it, 130 or 143 if it was interrupted.

    Args:
        sweep: ``id/number`` of the sweep's run that this is.
        as_json: write a line of JSON an event, the last with the objective (see `components.tracking.json_lines`).
        listener: hears the events too.

    Raises: BadInput, before anything was built.
    """
    prepared = prepare(overrides, config_dir)
    for warning in prepared.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for note in notes(prepared.config, prepared.specs):
        print(f"note: {note}", file=sys.stderr)
    from components.artifacts import ArtifactStore
    from components.tracking.console import ConsoleView
    from components.tracking.json_lines import JsonLines
    from components.tracking.jsonl import EventLog
    from flows.gate import Gate
    from flows.launch.events import Fanout
    from flows.launch.torchrun import warm_up
    from flows.monitor import Monitor
    from flows.pipeline import Driver
    from flows.runs import RunRecord
    from flows.signals import Stop

    os.environ[ALLOW_VARIABLE] = " ".join(prepared.allow)
    _quiet_libraries()
    new = [spec for spec in prepared.specs if not (prepared.artifacts / "cache" / spec.name).is_dir()]
    if any("torchrun" in str(spec.launcher.get("_target_")) for spec in new):
        warm_up()  # something has to be built: torch is loaded while the trackers start
    try:
        record = RunRecord.start(prepared.artifacts, prepared.config, prepared.specs, sweep)
    except OSError as error:
        raise BadInput(Problem("run", "", f"its record can't be made: {error.strerror or error}")) from error
    if (uri := os.environ.get("MLFLOW_TRACKING_URI")) and prepared.config.root.get("tracking"):
        record({"address": {"MLflow": redact(uri)}})
    store = ArtifactStore(prepared.artifacts / "cache", run=record.id)
    state, code, worth = "failed", 1, {}
    signals = contextlib.ExitStack()
    stop = signals.enter_context(Stop().installed())  # until the record is finished
    try:
        tracker = build(prepared.config.root.get("tracking") or None, allow=(*ALLOWED, *prepared.allow))
        view = JsonLines() if as_json else ConsoleView(quiet=quiet)
        listeners = [record, view, EventLog(record.directory / "events.jsonl"), *([tracker] if tracker else [])]
        header = _header(prepared, record)
        with (
            Fanout([_told(listener, header) for listener in listeners]) as emit,
            _orchestrated(prepared, record.id, emit, in_sweep=bool(sweep)),
        ):
            emit.add(monitor := Monitor(prepared.specs, emit))
            if listener is not None:
                emit.add(listener)
            gate = Gate(prepared.specs, prepared.artifacts / "gate", prepared.config.root.get("gate"), emit, stop)

            def execute(spec: StageSpec, parents: Any, launch: Any, say: Any) -> StageArtifact:
                ignore_code = prepared.ignores_code
                artifact = run_stage(spec, parents, store, monitor.around(launch), say, ignore_code=ignore_code)
                gate(spec, artifact)
                return artifact

            driver = Driver(
                prepared.specs,
                execute,
                emit=emit,
                stop=stop,
                retry_wait_s=prepared.config.root.get("retry_wait_s", 2.0),
                allow=(*ALLOWED, *prepared.allow),
            )
            result = driver.run()
        state, code = result.state, result.exit_code
        objective = read_objective(prepared.config.root.get("objective"))
        worth = objective.of(record.content) if state == "done" else objective.none(state)
        if state == "done" and worth["problem"] and is_asked_for(prepared.config.root, prepared.config.overrides):
            print(f"warning: objective.metric: {worth['problem']}", file=sys.stderr)
        if isinstance(view, JsonLines):
            view.result({**record.content, "objective": worth}, state, code)
        else:
            _summarise(record.content, view, table=not (quiet and sweep))  # a sweep ends with tables of its own
    finally:
        if problem := record.finish(state, code, worth):
            print(f"r1flow: {problem}. So the record of this run says less than happened here.", file=sys.stderr)
            code = code or 1
        signals.close()
    return code


def _orchestrated(
    prepared: Prepared, run: str, events: Any, *, in_sweep: bool
) -> contextlib.AbstractContextManager[None]:
    """Prefect's record of the run, unless ``orchestrator=inline``."""
    if prepared.config.root["orchestrator"] == "inline":
        return contextlib.nullcontext()
    from flows.prefect_listener import recorded_in_prefect

    limit_s = 0.0 if in_sweep else 5.0  # the next run of a sweep doesn't wait for the record of this one
    return recorded_in_prefect(prepared.artifacts / "prefect", run, events, limit_s)


def _header(prepared: Prepared, record: Any) -> dict[str, Any]:
    return {
        "run": record.id,
        "directory": str(record.directory),
        "pipeline": prepared.config.pipeline,
        "seed": prepared.config.root.get("seed", 0),
        "sweep": record.content["sweep"],
        **_of_sweep(prepared.artifacts, record.content["sweep"]),
        "git": record.content["git"],
        "config": record.content["config"],
        "overrides": record.content["overrides"],
        "choices": record.content["choices"],
        "stages": [spec.name for spec in prepared.specs],
        "params": {spec.name: spec.settings for spec in prepared.specs},
    }


def _of_sweep(artifacts: Path, sweep: str) -> dict[str, Any]:
    """What tells this run from the others of its sweep, and who runs that; nothing outside one."""
    from flows.sweep.record import read_sweep

    name, _, number = sweep.rpartition("/")
    try:
        content = read_sweep(artifacts, name) if name else {}
        return {"arm": content["runs"][int(number)]["overrides"], "sweep_process": content.get("process", "")}
    except (OSError, ValueError, LookupError):
        return {}


def _told(listener: Listener, header: Mapping[str, Any]) -> Listener:
    """``listener``, told at the start which run this is."""

    def tell(event: Mapping[str, Any]) -> None:
        starts = event.get("event") == "run" and event.get("state") in ("running", "started")
        listener({**event, **header, "state": "started"} if starts else event)

    tell.__qualname__ = type(listener).__qualname__
    return tell


def _summarise(content: Mapping[str, Any], view: Any, *, table: bool) -> None:
    """After the run: what failed and why, the evaluation table, where the report lies."""
    for name, stage in content["stages"].items():
        if stage["state"] == "failed":
            view.console.print(f"\n{name} failed: {stage.get('why', '')}", style="red", markup=False)
            if details := stage.get("details"):
                view.console.print(details.rstrip(), markup=False, highlight=False)
    if table:
        show_report(content, view.console)


def show_report(content: Mapping[str, Any], console: Any) -> bool:
    """Print a run's evaluation table and the path of its report; False if it has none."""
    from components.evaluation.attribution_text import attribution_lines
    from components.tracking.console import console_table

    for stage in content["stages"].values():
        page = Path(stage.get("path") or "/nonexistent") / "report.html"
        if not page.is_file():
            continue
        summary = page.with_name("summary.json")
        if summary.is_file():
            found = json.loads(summary.read_text(encoding="utf-8"))
            console.print(console_table(found))
            for line in attribution_lines(found.get("attribution") or {}):
                console.print(f"· {line}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"Report: {page}", markup=False, highlight=False, soft_wrap=True)
        return True
    return False


def _quiet_libraries() -> None:
    """Only warnings of libraries reach the terminal, each once a place."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for name in ("httpx", "alembic", "prefect", "mlflow", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
