"""The process that records a run in Prefect: ``python -m flows.prefect_recorder``, one JSON event a line on its input.

It finds or starts the server while the run has long begun, and outlives a killed driver to record that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path

from flows.launch.events import Event
from flows.local_server import ServerFailed
from flows.prefect_server import (
    PRIVATE,
    client_environment,
    configured_api_url,
    ensure_prefect_server,
    wait_for_prefect,
)
from flows.redact import redact

GONE = "gone"  # the driver speaks no more
LIMIT_S = 180.0  # after the last event; Prefect's client asks a server that died for minutes


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--home", type=Path, required=True, help="directory of our own server")
    arguments.add_argument("--run", required=True, help="name of the flow run")
    arguments.add_argument("--driver", required=True, type=int, help="process number of the driver")
    given = arguments.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log

    def tell(message: Event) -> None:
        with contextlib.suppress(OSError):  # the driver may be gone
            print(json.dumps(message), file=answers, flush=True)

    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    try:
        if (url := configured_api_url()) is None:
            server = ensure_prefect_server(given.home)
            os.environ.update(client_environment(given.home, server))
            from flows.prefect_flow import follow  # imports Prefect: seconds, in which the server starts

            wait_for_prefect(f"{server.url}/api", home=given.home, server=server)
        else:
            os.environ.update(PRIVATE)
            _wait_for_theirs(url)
            from flows.prefect_flow import follow
        follow(given.run, given.driver, map(json.loads, iter(lines.get, None)), tell, given.home.parent / "runs")
    except ServerFailed as error:
        tell({"problem": str(error)})
        raise SystemExit(1) from None


def _wait_for_theirs(url: str) -> None:
    """Raises: ServerFailed with what to do about a server of the user's that is not there."""
    if not url.startswith(("http://", "https://")):
        raise ServerFailed(f"PREFECT_API_URL={redact(url)} is no address. Fix: write http://HOST:4200/api")
    try:
        wait_for_prefect(url)
    except ServerFailed as error:
        fix = "start that server, or unset PREFECT_API_URL (also in Prefect's profile) to use one of our own"
        raise ServerFailed(f"{redact(str(error))}. Fix: {fix}, or orchestrator=inline") from None


def _read(lines: queue.SimpleQueue[str | None]) -> None:
    """Take events as they come, so that the driver never finds the pipe full."""
    for line in sys.stdin:
        lines.put(line)
    lines.put(json.dumps({"event": GONE, "time": time.time()}))  # when a driver that was killed was last alive
    lines.put(None)
    time.sleep(LIMIT_S)  # a daemon thread: usually the process has long ended
    os._exit(1)


if __name__ == "__main__":
    main()
