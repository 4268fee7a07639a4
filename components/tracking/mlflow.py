"""MLflow's view of a run: a parent run per pipeline run, a child per stage. The only file that imports mlflow."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from components.tracking import background
from components.tracking.events import Event, flatten, numbers, stage_state
from components.tracking.faults import knows, naming_the_variable, set_aside_if_broken
from components.tracking.names import metric_name, param_value

_STATUS = {"done": "FINISHED", "reused": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "skipped": "KILLED"}
_SMALL_FILES, _SMALL_BYTES = (".html", ".json", ".md", ".csv", ".svg", ".png"), 10_000_000


class MlflowTracker:
    """Listener that records a run in MLflow, in the background (see `Background`).

    The store is ``MLFLOW_TRACKING_URI`` if that is set, else SQLite in ``directory``.

    Args:
        experiment: name of the experiment; by default ``r1flow-<pipeline>``.
        flush_every_s: longest time metrics wait before they are written.
        patience_s: how long the end of a run waits for the store.
    """

    def __init__(
        self,
        *,
        directory: str = "artifacts/mlflow",
        experiment: str | None = None,
        flush_every_s: float = 10.0,
        patience_s: float = 40.0,
    ) -> None:
        self._background = background.Background(
            "MLflow",
            lambda memo: Recorder(Path(directory).absolute(), experiment, memo),
            Path(directory).absolute() / "pending",
            flush_every_s=flush_every_s,
            patience_s=patience_s,
        )

    def __call__(self, event: Event) -> None:
        self._background(event)

    def close(self) -> None:
        self._background.close()


def record_pending(directory: str | Path, experiment: str | None = None) -> int:
    """Record what earlier runs left in ``directory/pending``; the number of runs recorded.

    Raises: whatever the store raises; what was not recorded stays.
    """
    home = Path(directory).absolute()
    return background.record_pending(lambda memo: Recorder(home, experiment, memo), home / "pending")


class Recorder:
    """Writes events to the store.

    Args:
        memo: MLflow's run id of the parent, those of the stages by name, and the event the run started with.
    """

    def __init__(self, directory: Path, experiment: str | None, memo: dict[str, Any]) -> None:
        self.directory, self.name, self.memo = directory, experiment, memo
        self.memo.setdefault("children", {})
        self.client, self.experiment_id = None, ""
        self._buffer: dict[str, list[Any]] = {}
        self._by_step: dict[str, set[str]] = {}
        if "start" in memo:
            self._start(memo["start"])

    def record(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "run" and event.get("state") in ("started", "running"):
            self._start(event)
        elif event["event"] == "run":
            self._end(event)
        elif event["event"] == "stage":
            self._stage(event)
        elif event["event"] == "metrics":
            run_id, values = self._child(event), event.get("values") or {}
            self._by_step.setdefault(run_id, set()).update(values)
            self._measure(run_id, values, int(event["step"]), int(event["time"]))

        elif event["event"] == "finding":
            key, run_id = f"r1flow.finding.{event['name']}", self._child(event)
            self._store.set_tag(run_id, key, param_value(key, event["text"]))
            self._store.set_tag(self.memo["parent"], key, f"{event['stage']} step {event['step']}")

    def flush(self) -> None:
        """Write buffered metrics, a thousand at a time (the most MLflow takes)."""
        for run_id, metrics in self._buffer.items():
            while metrics:
                self._store.log_batch(run_id, metrics=metrics[:1000])
                del metrics[:1000]

    @property
    def _store(self) -> Any:
        if self.client is None:
            self.client = connect(self.directory)
        return self.client

    def _start(self, event: Mapping[str, Any]) -> None:
        name = self.name or f"r1flow-{event.get('pipeline', 'run')}"
        self.experiment_id = find_experiment(self._store, self.directory, name)
        self.memo["start"] = dict(event)
        if "parent" in self.memo and not knows(self._store, self.memo["parent"]):
            del self.memo["parent"]
            self.memo["children"] = {}
        if "parent" not in self.memo:
            close_abandoned(self._store)
            tags = {"r1flow.run": event.get("run", ""), "r1flow.sweep": event.get("sweep", ""), **_process_tags()}
            tags |= {"r1flow.directory": event.get("directory", ""), "mlflow.source.git.commit": event.get("git", "")}
            run = self._store.create_run(
                self.experiment_id, int(event["time"]), {k: str(v) for k, v in tags.items() if v}, str(event.get("run"))
            )
            self.memo["parent"] = run.info.run_id
        shown = {key: event[key] for key in ("pipeline", "seed", "choices", "overrides") if event.get(key) is not None}
        self._log_params(self.memo["parent"], shown)

    def _end(self, event: Mapping[str, Any]) -> None:
        self.flush()
        status, at = _STATUS.get(str(event.get("state")), "FAILED"), int(event["time"])
        for run_id in [*self.memo["children"].values(), self.memo["parent"]]:
            if run_id and self._store.get_run(run_id).info.status == "RUNNING":
                self._store.set_terminated(run_id, status if run_id == self.memo["parent"] else "KILLED", at)

    def _child(self, event: Mapping[str, Any]) -> str:
        """The stage's run, made when it is first heard of."""
        stage = str(event["stage"])
        if stage not in self.memo["children"]:
            tags = {"mlflow.parentRunId": self.memo["parent"], "r1flow.stage": stage, **_process_tags()}
            run = self._store.create_run(self.experiment_id, int(event["time"]), tags, stage)
            self.memo["children"][stage] = run.info.run_id
            settings = self.memo["start"].get("params") or {}
            if stage in settings:
                self._log_params(run.info.run_id, settings[stage])
        return self.memo["children"][stage]

    def _stage(self, event: Mapping[str, Any]) -> None:
        state = stage_state(event)
        if state == "waiting":
            return
        run_id = self._child(event)
        artifact = event.get("artifact") or {}
        tags = {
            "r1flow.state": state,
            "r1flow.why": event.get("why"),
            **{f"r1flow.{k}": v for k, v in artifact.items()},
        }
        facts = Path(artifact["path"]) / "logs" / "facts.json" if artifact.get("path") else None
        if facts is not None and facts.is_file():
            tags |= {f"r1flow.{name}": value for name, value in json.loads(facts.read_text("utf-8")).items()}
        for key, value in tags.items():
            if value:
                self._store.set_tag(run_id, key, param_value(key, value))
        if state not in _STATUS:
            return
        at = int(event["time"])
        last = {"wall_s": event.get("wall_s"), **(event.get("metrics") or {})}
        steps = self._by_step.get(run_id, set())  # a figure with a curve has its last value there
        self._measure(run_id, {name: value for name, value in last.items() if name not in steps}, 0, at)
        if artifact.get("path"):
            self._keep_files(run_id, Path(artifact["path"]), event.get("metrics") or {}, at)
        self.flush()
        self._store.set_terminated(run_id, _STATUS[state], at)

    def _keep_files(self, run_id: str, folder: Path, metrics: Mapping[str, Any], at: int) -> None:
        """Small files a person reads. Of the report also on the parent, with its figures, so that runs compare."""
        files = [f for f in sorted(folder.iterdir()) if f.suffix in _SMALL_FILES and f.stat().st_size < _SMALL_BYTES]
        is_report = any(file.name == "report.html" for file in files)
        for target in [run_id, *([self.memo["parent"]] if is_report else [])]:
            for file in files:
                self._store.log_artifact(target, str(file))
        if is_report:
            self._measure(self.memo["parent"], metrics, 0, at)

    def _measure(self, run_id: str, values: Mapping[str, Any], step: int, at: int) -> None:
        from mlflow.entities import Metric  # heavy, see `connect`

        buffer = self._buffer.setdefault(run_id, [])
        buffer += [Metric(metric_name(name), value, at, step) for name, value in numbers(values).items()]

    def _log_params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param  # heavy, see `connect`

        flat = {metric_name(key): param_value(key, value) for key, value in flatten(values)}
        params = [Param(key, value) for key, value in flat.items()]
        for start in range(0, len(params), 100):
            self._store.log_batch(run_id, params=params[start : start + 100])


def connect(directory: Path) -> Any:
    """A client of the user's tracking server, or of SQLite in ``directory``."""
    for name, value in {
        "DO_NOT_TRACK": "true",  # MLflow takes no other spelling
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # its seven retries take minutes
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    }.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient  # three seconds of CPU, paid in the tracker's thread only

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        reach(uri)
        with naming_the_variable(uri):
            return MlflowClient(uri)
    directory.mkdir(parents=True, exist_ok=True)
    database = directory / "mlflow.db"
    with locked(directory / ".create.lock"):  # two processes that create the tables at once break each other
        set_aside_if_broken(database)
        if not database.exists():
            # A database that was left half made never works again: it gets its name only when it is whole.
            draft = directory / f"mlflow.{os.getpid()}.db"
            MlflowClient(f"sqlite:///{draft}").search_experiments(max_results=1)
            draft.rename(database)
    return MlflowClient(f"sqlite:///{database}")


def reach(uri: str) -> None:
    """Find out whether a tracking server is there at all, before MLflow says it in a page of retries.

    Raises: ConnectionError in one line. What only a proxy can reach is left to MLflow.
    """
    where = urlsplit(uri)
    if where.scheme not in ("http", "https") or not where.hostname or getproxies():
        return
    try:
        socket.create_connection((where.hostname, where.port or {"http": 80, "https": 443}[where.scheme]), 5).close()
    except OSError as error:
        raise ConnectionError(
            f"no server answers at {where.scheme}://{where.hostname}:{where.port or ''} ({error.strerror or error}). "
            "Fix: start it, or unset MLFLOW_TRACKING_URI to record below the artifacts"
        ) from error


def find_experiment(client: Any, directory: Path, name: str) -> str:
    """Id of the experiment, made if it is new; without a server its files lie in ``directory``."""
    with locked(directory / ".create.lock"):
        if (found := client.get_experiment_by_name(name)) is not None:
            return found.experiment_id
        remote = bool(os.environ.get("MLFLOW_TRACKING_URI"))
        location = None if remote else (directory / "files" / metric_name(name)).as_uri()
        return client.create_experiment(name, artifact_location=location)


def close_abandoned(client: Any) -> None:
    """End runs that a process of this machine left open when it was killed, of whatever pipeline."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=1000):
        host, _, process = run.data.tags.get("r1flow.process", "").partition("/")
        if host == socket.gethostname() and process != _process_of(process.partition("@")[0]):
            client.set_terminated(run.info.run_id, "KILLED")


def _process_tags() -> dict[str, str]:
    return {"r1flow.process": f"{socket.gethostname()}/{_process_of(str(os.getpid()))}"}


def _process_of(pid: str) -> str:
    """``pid@start``: a process id is used again, its start time is not. Without /proc only the id tells."""
    try:
        return f"{pid}@{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        try:
            os.kill(int(pid), 0)
        except (ValueError, ProcessLookupError, PermissionError, OverflowError):
            return ""
        return f"{pid}@"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    import fcntl  # not on every system, and only needed here

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
