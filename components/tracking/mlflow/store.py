"""Where runs are recorded: the user's tracking server, or SQLite below the artifacts."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from components.tracking.faults import naming_the_variable, set_aside_if_broken
from components.tracking.names import metric_name
from components.tracking.processes import is_gone

PROCESS = "r1flow.process"  # tag: which process records a run


def connect(directory: Path) -> Any:
    """A client of the user's tracking server, or of SQLite in ``directory``."""
    for name, value in {
        "DO_NOT_TRACK": "true",  # MLflow takes no other spelling
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # its seven retries take minutes
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",  # this is a thread of its own already
    }.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient  # three seconds of CPU, paid in the tracker's thread only

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        reach(uri)
        with naming_the_variable(uri):
            send_traces_to(uri)
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
        from components.tracking.mlflow.sqlite import spare_the_disk  # imports sqlalchemy, as mlflow has

        spare_the_disk(database)
    send_traces_to(f"sqlite:///{database}")
    return MlflowClient(f"sqlite:///{database}")


def send_traces_to(uri: str) -> None:
    """Traces know no client, they go where MLflow as a whole is pointed at; that must not reach our environment."""
    import mlflow  # heavy, see `connect`

    before = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    if before is None:
        os.environ.pop("MLFLOW_TRACKING_URI", None)


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
        if is_gone(run.data.tags.get(PROCESS, "")):
            client.set_terminated(run.info.run_id, "KILLED")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    import fcntl  # not on every system, and only needed here

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
