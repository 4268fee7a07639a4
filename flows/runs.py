"""Run records: ``artifacts/runs/<id>/run.json`` says what was run, how far it came and where its results lie."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components.artifacts.disk import naming_errors
from flows.compose import Config
from flows.errors import BadInput, Problem, did_you_mean, nearest
from flows.record_shape import ID, SCHEMA, completed, not_a_record
from flows.redact import redact
from flows.stage import StageSpec

UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_NAMED = 6  # runs that a message lists, and sweeps
_told: set[tuple[Path, str]] = set()  # each is named once a process
_WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jade"),
    *("kelp", "larch", "maple", "north", "opal", "pine", "quartz", "river", "slate", "topaz"),
)


def adopt(artifacts: Path, record: Mapping[str, Any], origin: str) -> str | None:
    """Write the record of a run of another machine, with the places its artifacts have here; its id.

    None if it can't be taken: another schema, no usable name, a shape that is not a record's.
    """
    if not_a_record(record):
        return None
    name, stages = record["id"], record["stages"]
    directory = artifacts / "runs" / name
    if directory.exists():
        return name
    here = {}
    for stage, entry in stages.items():
        path = artifacts.absolute() / "cache" / str(stage) / str(entry.get("key") or "-")
        found = bool(ID.match(str(stage))) and bool(ID.match(path.name)) and path.is_dir()
        kept = {k: v for k, v in entry.items() if k not in ("path", "key", "digest") or found}
        here[str(stage)] = {**kept, **({"path": str(path)} if found else {})}
    directory.mkdir(parents=True)
    content = {**record, "stages": here, "imported": {"from": origin, "at": _now()}}
    content |= {"state": "killed"} if record.get("state") == "running" else {}
    write_json(directory / "run.json", content)
    return name


class RunRecord:
    """The record of a run that is under way. As a listener it follows the driver's events; every change is written
    to a temporary file and renamed, so that a reader never sees half of it.

    Holds a file lock while open: the kernel frees it when the process dies, which is how `list_runs` tells a run that
    is at work from one that was killed.

    Attributes:
        problem: why the record on disk is not up to date (a full disk); "" while it is. The next change tries again.
    """

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.directory, self.content = directory, content
        self._mutex = threading.Lock()
        self.problem = ""
        self._lock = (directory / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        write_json(directory / "run.json", self.content)

    @classmethod
    def start(cls, artifacts: Path, config: Config, specs: Sequence[StageSpec], sweep: str = "") -> RunRecord:
        """Make the directory of a new run and write its first record."""
        stages = {
            spec.name: {
                "state": "waiting",
                "target": spec.target,
                "inputs": dict(spec.inputs),
                "settings": spec.settings,
                "launcher": dict(spec.launcher),
            }
            for spec in specs
        }
        content = {
            "schema": SCHEMA,
            "id": "",
            "pipeline": config.pipeline,
            "choices": dict(config.choices),
            "overrides": [redact(text) for text in config.overrides],
            "config": config.unresolved,
            "seed": config.root.get("seed", 0),
            "cache": dict(config.root.get("cache") or {}),
            "sweep": sweep,
            "git": _git_revision(),
            "python": platform.python_version(),
            "host": platform.node(),
            "pid": os.getpid(),
            "cwd": str(Path.cwd()),
            "started": _now(),
            "ended": None,
            "state": "running",
            "exit": None,
            "addresses": {},
            "stages": stages,
        }
        with held(artifacts, exclusive=False):  # from here on `r1flow cache gc` sees that this run needs things
            directory = new_directory(artifacts / "runs")
            return cls(directory, {**content, "id": directory.name})

    @property
    def id(self) -> str:
        return self.content["id"]

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Follow one event of the driver."""
        if event.get("event") == "stage" and event.get("stage") in self.content["stages"]:
            artifact = event.get("artifact") or {}
            found = {
                k: event[k]
                for k in ("state", "why", "details", "wall_s", "metrics")
                if event.get(k) not in (None, "", {})
            }
            self._update(self.content["stages"][event["stage"]], {**found, **_jsonable(artifact)})
        elif event.get("event") == "say" and event.get("code_ignored") and event.get("stage") in self.content["stages"]:
            self._update(self.content["stages"][event["stage"]], {"code_ignored": event["code_ignored"]})
        elif event.get("event") == "gate" and event.get("stage") in self.content["stages"]:
            verdict = event["verdict"] | {"mode": event["mode"]}
            self._update(self.content["stages"][event["stage"]], {"gate": verdict})
        elif isinstance(event.get("address"), Mapping):
            self._update(self.content["addresses"], {str(k): str(v) for k, v in event["address"].items()})

    def finish(self, state: str, exit_code: int, objective: Mapping[str, Any] | None = None) -> str:
        """Write how the run ended, and what it is worth, and release the lock; what the record lacks, "" if nothing."""
        ended = {"state": state, "exit": exit_code, "ended": _now(), "objective": dict(objective or {})}
        self._update(self.content, ended)
        self._lock.close()
        return self.problem

    def _update(self, part: dict[str, Any], changes: Mapping[str, Any]) -> None:
        with self._mutex:
            part.update(changes)
            try:
                write_json(self.directory / "run.json", self.content)
                self.problem = ""
            except OSError as error:
                self.problem = f"{error.strerror or error}"


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Replace a record; whoever reads it sees the old one or the new one. Raises: OSError, and leaves the old one."""
    temporary = file.with_name(f"{file.name}.tmp")
    try:
        with naming_errors("write", file):
            temporary.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
            os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def held(artifacts: Path, *, exclusive: bool) -> Iterator[None]:
    """Keep runs from starting (exclusive), or garbage from being collected, for a moment.

    In a folder that can't be written there is nothing to keep from being collected, at least not by this user.
    """
    file = artifacts / "runs" / ".lock"
    with contextlib.ExitStack() as opened:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stream = opened.enter_context(file.open("w"))
        except OSError as error:
            if exclusive or error.errno not in UNWRITABLE:
                raise
        else:
            fcntl.flock(stream, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


def new_directory(parent: Path) -> Path:
    """A fresh directory ``<time>-<word>``; the word keeps two of the same second apart and is easy to say."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    words = random.Random(os.urandom(8)).sample(_WORDS, len(_WORDS))
    for name in (*(f"{stamp}-{word}" for word in words), f"{stamp}-{os.getpid()}"):
        try:
            (parent / name).mkdir()
        except FileExistsError:
            continue
        return parent / name
    raise FileExistsError(f"{parent} holds a directory for every name of {stamp}")


def list_runs(artifacts: Path) -> list[dict[str, Any]]:
    """Records of all runs, oldest first. A run that says "running" without a process behind it reads "killed"."""
    files = sorted((artifacts / "runs").glob("*/run.json"))
    records = [record for file in files if (record := _read(file)) is not None]
    return sorted(records, key=lambda record: str(record.get("started", "")))  # two of one second have names by chance


def find_run(artifacts: Path, name: str | None = None, *, sweeps: Sequence[str] = ()) -> dict[str, Any]:
    """The record of a run: by id, by an unambiguous part of it, or the latest.

    Args:
        sweeps: ids that would have done as well; they are named where nothing is found.

    Raises: BadInput if there is none, or several.
    """
    records = {record["id"]: record for record in list_runs(artifacts)}
    if not records:
        raise BadInput(Problem("runs", "", f"there are none in {artifacts}", fix="start one: r1flow run"))
    if name is None:
        return list(records.values())[-1]
    matching = [name] if name in records else [id for id in records if name in id]
    if len(matching) != 1:
        problem = f"no such run{' or sweep' if sweeps else ''}" if not matching else f"fits {len(matching)} runs"
        fix = did_you_mean(name, matching or records)
        if sweeps and not matching:
            latest = f"{', '.join(sorted(records)[-_NAMED:])}; sweeps: {', '.join(sorted(sweeps)[-_NAMED:])}"
            near = nearest(name, [*records, *sweeps])
            fix = f"{f'did you mean {near}? ' if near else ''}The latest runs: {latest}"
        raise BadInput(Problem("runs", "", problem, got=name, fix=fix))
    return records[matching[0]]


def stage_directories(artifacts: Path, stage: str) -> Iterator[tuple[dict[str, Any], Path]]:
    """Runs that have a finished artifact of this stage, latest first, with its directory."""
    for record in reversed(list_runs(artifacts)):
        path = record["stages"].get(stage, {}).get("path")
        if path and Path(path).is_dir():
            yield record, Path(path)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        problem = not_a_record(record)
    except (OSError, ValueError, RecursionError) as error:
        record, problem = {}, str(error)
    if problem:
        if (file, problem) not in _told:
            _told.add((file, problem))
            print(f"{file} is left out: {problem}", file=sys.stderr)
        return None
    if record["state"] == "running" and not _is_held(file.with_name("lock")):
        record["state"] = "killed"
    record = completed(record, file.stat().st_mtime)
    _places_here(record, file.absolute().parents[2])
    return record


def _places_here(record: dict[str, Any], artifacts: Path) -> None:
    """Artifacts are looked for below the folder that the record is in: it may have been moved or copied."""
    for stage, entry in record["stages"].items():
        key = entry.get("key")
        if key and ID.match(stage) and ID.match(key) and (here := artifacts / "cache" / stage / key).is_dir():
            entry["path"] = str(here)


def _is_held(lock: Path) -> bool:
    try:
        with lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _git_revision() -> str | None:
    """Revision of this source tree, "-dirty" if it was changed; None where it isn't one."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def _jsonable(value: Mapping[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in value.items()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
