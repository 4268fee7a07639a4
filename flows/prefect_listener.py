"""The driver's end of Prefect's record of a run: a listener that passes events to `flows.prefect_recorder`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.launch.events import Emit, Event, Fanout
from flows.prefect_server import configured_api_url
from flows.redact import redact

_PASSED_ON = {"run": 0.0, "stage": 0.0, "say": 0.0, "finding": 0.0, "progress": 2.0, "metrics": 5.0}  # kind → every s


@contextlib.contextmanager
def recorded_in_prefect(home: Path, run: str, events: Fanout, limit_s: float) -> Iterator[None]:
    """Record in Prefect what is emitted inside this block; at its end wait for the record at most ``limit_s``."""
    listener = PrefectListener(home, run, events)
    events.add(listener)
    try:
        yield
    finally:
        events.flush()
        listener.close(limit_s)


class PrefectListener:
    """Shows a run in Prefect. Starting it starts the server too, where none is configured; nothing here ever blocks.

    Args:
        home: directory of our own server (``artifacts/prefect``).
        run: name of the flow run.
        say: takes one line: the address, or why there is no record.
    """

    _STAYS = " (the server stays; to stop it: r1flow ui --stop)"

    def __init__(self, home: Path, run: str, say: Emit) -> None:
        home = home.resolve()
        home.mkdir(parents=True, exist_ok=True)
        self._passed_on: dict[tuple[str, Any], float] = {}
        self._say, self._failed, self._closed, self._connected = say, False, False, False
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._log = home / "flow.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "flows.prefect_recorder"),
                    *("--home", str(home), "--run", run, "--driver", str(os.getpid())),
                ],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a kill of the driver's group leaves it there to record the crash
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        threading.Thread(target=self._hear, name="prefect", daemon=True).start()

    def __call__(self, event: Event) -> None:
        """Pass one event on; what the process cannot take at once is given up, with all that follows."""
        if self._failed or self._closed or not self._due(event):
            return
        line = json.dumps({"time": time.time(), **event, "details": ""}, default=str).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            if os.write(self._process.stdin.fileno(), line) < len(line):
                raise BlockingIOError
        except OSError:
            self._fail("it stopped taking events")

    def _due(self, event: Event) -> bool:
        """Whether to pass it on: of what comes often, one every few seconds and stage is enough to look at."""
        if (every_s := _PASSED_ON.get(event["event"])) is None:
            return False
        key, now = (event["event"], event.get("stage")), time.monotonic()
        if every_s and now - self._passed_on.get(key, float("-inf")) < every_s:
            return False
        self._passed_on[key] = now
        return True

    def close(self, limit_s: float) -> None:
        """End of the run. What is not recorded within ``limit_s`` is left to the process, which goes on by itself."""
        assert self._process.stdin is not None
        self._closed = True
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            if not limit_s:
                return
            if (url := configured_api_url()) is None or self._connected:
                self._tell("Prefect is still recording this run, in the background")
            else:
                self._tell(
                    f"Prefect at {redact(url)} has not answered yet; in the background it is tried a little longer"
                )
        else:
            if code:
                self._fail(f"its recorder ended with code {code}, see {self._log}")

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "problem" in message:
                self._fail(message["problem"])
            else:
                url, stays = message["url"], "" if configured_api_url() else self._STAYS
                self._connected = True
                self._tell(f"Prefect shows this run: {url}{stays}", address={"Prefect": url})

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._tell(f"Prefect does not record this run: {why}. The run goes on without it", level="warning")

    def _tell(self, text: str, **more: Any) -> None:
        self._say({"event": "say", "stage": None, "text": text, **more})
