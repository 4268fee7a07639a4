"""``r1flow ui``: the workflow's pages (Prefect) and the tracker's (MLflow), on this machine only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from components.tracking.mlflow import record_pending
from flows.local_server import ServerFailed, ensure_server, find_server, stop_server, wait_until_it_answers
from flows.prefect_server import configured_api_url, ensure_prefect_server, wait_for_prefect
from flows.redact import redact

MLFLOW_PORT = 5010  # next to MLflow's own 5000
MLFLOW_LIMIT_S = 180.0  # it took 20 s on a quiet machine
MLFLOW_DATABASE = "mlflow.db"


def show_interfaces(artifacts: Path, console: Any, *, stop: bool = False) -> int:
    """Start what isn't running and print the addresses; with ``stop``, end both. The exit code."""
    if stop:
        return stop_interfaces(artifacts, console)
    pages = (
        ("Prefect", "runs and their stages", _prefect),
        ("MLflow", "metrics, settings, comparisons", _mlflow),
    )
    with ThreadPoolExecutor(len(pages)) as pool:  # both take their seconds to start
        codes = list(pool.map(lambda page: _show(console, page[0], page[1], lambda: page[2](artifacts)), pages))
    console.print("They keep running. Stop them: r1flow ui --stop", markup=False)
    return max(codes)


def stop_interfaces(artifacts: Path, console: Any) -> int:
    for name, home in (("Prefect", artifacts / "prefect"), ("MLflow", artifacts / "mlflow")):
        server = stop_server(home)
        state = f"stopped (it was at {server.url})" if server else "was not running"
        console.print(f"{name:8} {state}", markup=False)
    return 0


def _show(console: Any, name: str, what: str, start: Callable[[], str]) -> int:
    try:
        console.print(f"{name:8} {start()}  {what}", markup=False, soft_wrap=True)
        return 0
    except ServerFailed as error:
        console.print(f"{name:8} could not start: {error}", markup=False, soft_wrap=True)
        return 1


def _prefect(artifacts: Path) -> str:
    """Address of the pages that belong to the server runs are recorded in."""
    if (url := configured_api_url()) is not None:
        return url.removesuffix("/api").replace("//api.prefect.cloud", "//app.prefect.cloud")
    home = artifacts / "prefect"
    server = ensure_prefect_server(home)
    wait_for_prefect(f"{server.url}/api", home=home, server=server)
    return server.url


def _mlflow(artifacts: Path) -> str:
    """Address of the user's tracking server, or of our own on the local store."""
    configured = os.environ.get("MLFLOW_TRACKING_URI", "")
    home = artifacts / "mlflow"
    if configured.startswith(("http://", "https://")):
        try:
            record_pending(home)
        except Exception as error:  # MLflow has one for each kind of store
            raise ServerFailed(f"what runs have left to be recorded stays here: {_first_line(error)}") from error
        return configured
    record_pending(home)  # makes the store where there is none, and adds what runs have left to be recorded
    server = find_server(home) or ensure_server(
        home, MLFLOW_PORT, lambda port: (mlflow_command(home, port, configured), mlflow_environment())
    )
    wait_until_it_answers(f"{server.url}/health", server=server, log=home / "server.log", limit_s=MLFLOW_LIMIT_S)
    return server.url


def _first_line(error: Exception) -> str:
    return redact((str(error).strip().splitlines() or [type(error).__name__])[0][:300])


def mlflow_command(home: Path, port: int, store: str = "") -> list[str]:
    """``mlflow ui`` with one worker: a quarter of the memory and half the start-up of its default."""
    return [
        *(sys.executable, "-m", "mlflow", "ui"),
        *("--backend-store-uri", store or f"sqlite:///{home / MLFLOW_DATABASE}"),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
    ]


def mlflow_environment() -> dict[str, str]:
    return {
        **os.environ,
        "DO_NOT_TRACK": "true",  # MLflow ignores 1
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
