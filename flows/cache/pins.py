"""Pins: runs and artifacts that garbage collection leaves alone; ``artifacts/pins.json``."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore, Damaged
from components.artifacts.disk import write_durably
from flows.errors import BadInput, Problem, did_you_mean
from flows.runs import find_run, list_runs, stage_directories

SCHEMA = 1


@dataclass(frozen=True)
class Target:
    """What a name on the command line means: a run, or one artifact."""

    run: str = ""
    stage: str = ""
    key: str = ""

    def __str__(self) -> str:
        return f"run {self.run}" if self.run else f"{self.stage}/{self.key}"


def resolve(artifacts: Path, name: str) -> Target:
    """A run by (part of) its id, ``stage`` for the one its latest run used, or ``stage/key`` by the key's beginning.

    Raises: BadInput naming what there is.
    """
    store = ArtifactStore(artifacts / "cache")
    stage, slash, beginning = name.partition("/")
    rows = store.ls(stage) if (store.root / stage).is_dir() and stage and not stage.startswith(".") else []
    if rows and not slash:
        for _, path in stage_directories(artifacts, stage):
            return Target(stage=stage, key=path.name)
        return Target(stage=stage, key=rows[-1]["key"])
    if slash:
        keys = [row["key"] for row in rows if row["key"].startswith(beginning)]
        if len(keys) == 1 or beginning in keys:
            return Target(stage=stage, key=beginning if beginning in keys else keys[0])
        known = [f"{row['stage']}/{row['key'][:10]}" for row in (rows or store.ls())]
        problem = f"begins {len(keys)} keys" if keys else "no such artifact"
        raise BadInput(Problem("cache", "", problem, got=name, fix=did_you_mean(name, known)))
    runs = {run["id"] for run in list_runs(artifacts)}
    if not any(name in run for run in runs):
        known = {*runs, *(row["stage"] for row in store.ls())}
        raise BadInput(Problem("cache", "", "neither a run nor a stage", got=name, fix=did_you_mean(name, known)))
    return Target(run=find_run(artifacts, name)["id"])


def artifacts_of(artifacts: Path, name: str, *, alone: bool) -> list[tuple[str, str]]:
    """(stage, key) of a run's artifacts or of one artifact, with what these were built from unless ``alone``.

    Parents come first. Raises: BadInput.
    """
    target, store = resolve(artifacts, name), ArtifactStore(artifacts / "cache")
    if target.run:
        stages = find_run(artifacts, target.run)["stages"]
        roots = [(stage, entry["key"]) for stage, entry in stages.items() if entry.get("key")]
    else:
        roots = [(target.stage, target.key)]
    found: dict[tuple[str, str], None] = {}

    def add(where: tuple[str, str]) -> None:
        if where not in found:
            if not alone:
                for parent in store.manifest(*where).get("parents", {}).values():
                    add((parent["stage"], parent["key"]))
            found[where] = None

    try:
        for where in roots:
            add(where)
    except Damaged as error:
        raise BadInput(Problem(str(error.path), "", error.problem, fix="build it again: r1flow run")) from error
    if not found:
        raise BadInput(Problem("cache", "", f"{target} has no finished artifact", fix="finish it first: r1flow run"))
    return list(found)


def read_pins(artifacts: Path) -> dict[Target, dict[str, Any]]:
    """Pins, each with ``since`` and ``why``.

    Raises: BadInput if the file can't be read: nothing may be collected then.
    """
    file = artifacts / "pins.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        assert content["schema"] == SCHEMA
        return {
            Target(pin.get("run", ""), pin.get("stage", ""), pin.get("key", "")): {
                "since": str(pin["since"]),
                "why": str(pin.get("why", "")),
            }
            for pin in content["pins"]
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        problem = f"can't be read ({type(error).__name__}: {error})"
        raise BadInput(Problem(str(file), "", problem, fix="correct it, or remove it and pin again")) from error


def make_pins(artifacts: Path, targets: list[Target], why: str = "") -> list[Target]:
    """Pin; those that were not pinned before. Call inside `flows.runs.held`, so that nothing is being collected."""
    with _editing(artifacts):
        pins = read_pins(artifacts)
        new = [target for target in targets if target not in pins]
        since = datetime.now(UTC).isoformat(timespec="seconds")
        _write(artifacts, {**pins, **{target: {"since": since, "why": why} for target in new}})
    return new


def remove_pins(artifacts: Path, targets: list[Target]) -> list[Target]:
    """Take pins away; those that were there."""
    with _editing(artifacts):
        pins = read_pins(artifacts)
        _write(artifacts, {target: entry for target, entry in pins.items() if target not in targets})
    return [target for target in targets if target in pins]


@contextlib.contextmanager
def _editing(artifacts: Path) -> Iterator[None]:
    with (artifacts / ".pins.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(artifacts: Path, pins: dict[Target, dict[str, Any]]) -> None:
    rows = [{**{k: v for k, v in asdict(target).items() if v}, **entry} for target, entry in pins.items()]
    write_durably(artifacts / "pins.json", json.dumps({"schema": SCHEMA, "pins": rows}, indent=1) + "\n")
