"""Trackers never hold up a run: they work in a thread of their own, and keep for later what could not be recorded."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from components.tracking.events import Event, stage_state

log = logging.getLogger("r1flow.tracking")
_CLOSE: dict[str, Any] = {"event": "close"}
_RECORDED = ("run", "stage", "metrics", "finding", "sweep")
_RETRY_S = 60.0


class Recorder(Protocol):
    """Writes events to a store. Recording an event again changes nothing, so after a failure all are tried again."""

    def record(self, event: Mapping[str, Any]) -> None: ...
    def flush(self) -> None: ...


# Makes a recorder that goes on from a memo: what it needs to know of the run so far, JSON values it fills itself.
MakeRecorder = Callable[[dict[str, Any]], Recorder]


class Background:
    """Listener that passes events to a recorder in a thread.

    The thread, and with it the recorder's imports, starts with the first stage that is built. A run in which every
    stage was reused therefore pays nothing; its events wait in ``pending``, like anything an outage left over, until
    the next run that builds something, or until `record_pending`.

    Args:
        pending: folder of what could not be recorded, one file a run.
        flush_every_s: longest time events wait before they are written.
        patience_s: how long the end of a run waits for the store.
    """

    def __init__(
        self, name: str, make: MakeRecorder, pending: Path, *, flush_every_s: float, patience_s: float
    ) -> None:
        self.name, self.pending = name, pending
        self.flush_every_s, self.patience_s = flush_every_s, patience_s
        self._make = make
        self._memo: dict[str, Any] = {}
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._undone: list[dict[str, Any]] = []  # taken from the queue, not yet known to be in the store
        self._thread: threading.Thread | None = None
        self._run = f"run-{os.getpid()}-{time.time_ns()}"

    def __call__(self, event: Event) -> None:
        kind = event.get("event")
        if kind not in _RECORDED:
            return
        self._queue.put({"time": int(time.time() * 1000), **event})
        if kind == "run" and event.get("state") in ("started", "running"):
            self._run = str(event.get("run") or self._run)
        elif kind == "run":
            self.close()
        elif kind == "sweep":
            self._run = f"sweep-{event['run']}-{event.get('pipeline', '')}"
            if self._thread is None:
                self._begin()
            if event.get("state") != "running":
                self.close()
        elif self._thread is None and (kind == "metrics" or stage_state(event) == "running"):
            self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, for at most ``patience_s``; keep the rest for the next run."""
        if self._thread is not None:
            self._queue.put(_CLOSE)
            self._thread.join(self.patience_s)
            if self._thread.is_alive():
                log.warning("%s took more than %g s to finish; the rest is recorded later", self.name, self.patience_s)
        self._set_aside()

    def _work(self) -> None:
        recorder: Recorder | None = None
        failed_at: float | None = None
        flushed_at = time.monotonic()
        event: dict[str, Any] | None = None
        while event is not _CLOSE:
            event = self._take(self.flush_every_s)
            if event is not None and event is not _CLOSE:
                with self._lock:
                    self._undone.append(event)
            if failed_at is not None and time.monotonic() - failed_at < _RETRY_S:
                continue
            try:
                if recorder is None:
                    if failed_at is None:
                        record_pending(self._make, self.pending)
                    recorder = self._make(self._memo)
                    for each in list(self._undone):
                        recorder.record(each)
                elif event is not None and event is not _CLOSE:
                    recorder.record(event)
                ends = event is not None and event["event"] in ("stage", "run", "close")
                if ends or time.monotonic() - flushed_at >= self.flush_every_s:
                    recorder.flush()
                    flushed_at = time.monotonic()
                    with self._lock:
                        self._undone.clear()
            except Exception as error:  # whatever the store does, the run goes on
                if failed_at is None:
                    reason = (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
                    kind = "" if isinstance(error, ConnectionError) else f"{type(error).__name__}: "
                    log.warning("%s: %s%s. %s", self.name, kind, reason, _KEPT)
                failed_at, recorder = time.monotonic(), None

    def _take(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _set_aside(self) -> None:
        """Keep events that are not in the store, with what the recorder knew."""
        with self._lock:
            rest = list(self._undone)
        while (event := self._take(0)) is not None:
            if event is not _CLOSE:
                rest.append(event)
        if rest:
            _write(self.pending / f"{self._run}.jsonl", [self._memo, *rest])


_KEPT = "The run goes on; what is missing there is kept and recorded by a later run."


def record_pending(make: MakeRecorder, pending: Path) -> int:
    """Record what earlier runs left in ``pending``; the number of runs recorded.

    Raises: whatever the store raises; what was not recorded stays.
    """
    count = 0
    _take_back(pending)
    for file in sorted(pending.glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            claimed = file.rename(file.with_suffix(f".{os.getpid()}"))
            if (rows := _read(claimed)) is None:
                continue
            memo, *events = rows
            try:
                recorder = make(memo)
                for event in events:
                    recorder.record(event)
                recorder.flush()
            except BaseException:
                _write(file, [memo, *events])  # with what the store knows by now: it isn't made twice
                claimed.unlink()
                raise
            claimed.unlink()
            count += 1
    return count


def _take_back(pending: Path) -> None:
    """What a process had claimed that was killed over it waits again."""
    for claimed in pending.glob("*.*"):
        owner = claimed.suffix[1:]
        if owner.isdigit() and Path("/proc/self").exists() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(FileNotFoundError):
                claimed.rename(claimed.with_suffix(".jsonl"))


def _read(claimed: Path) -> list[dict[str, Any]] | None:
    """The memo and the events; None, and said, if the file is damaged: it must not keep the others from being read."""
    try:
        rows = [json.loads(line) for line in claimed.read_text(encoding="utf-8").splitlines()]
        if rows and all(isinstance(row, dict) for row in rows):
            return rows
        problem = "it holds no events"
    except ValueError as error:
        problem = str(error)
    aside = claimed.rename(claimed.with_suffix(".damaged"))
    log.warning("%s can't be read (%s) and is left out; it is now %s", claimed.stem, problem, aside)
    return None


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object a line; half a file is never taken for a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")
    temporary.replace(path)
