"""Whether the directory for artifacts can take a run; tried before anything runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from components.artifacts.directory import Damaged, UnknownSchema, read_manifest
from flows.errors import Problem, short
from flows.stage import StageSpec

ROOM = 200 * 2**20  # bytes; less than this can't hold one run of the tiny default
_LONGEST = 4096 - 600  # bytes of a path that leave room for what a run makes below it
_FOLDERS = ("cache", "runs", "sweeps", "mlflow", "prefect")
_NEWER = "upgrade r1flow, or set artifacts=DIR to another directory"
_ELSEWHERE = "set artifacts=DIR to a directory you may write"


def store_problems(artifacts: Path, *, to_read: bool = False) -> Iterator[Problem]:
    """The directory, and what is to be made in it, can be written, or read if that is all."""
    too_long = [part for part in artifacts.parts if len(os.fsencode(part)) > 255]
    if too_long or len(os.fsencode(artifacts.absolute())) > _LONGEST:
        yield _problem(artifacts, "is too long a path", "set artifacts=DIR to a shorter one")
        return
    for path in (*reversed(artifacts.parents), artifacts, *(artifacts / name for name in _FOLDERS)):
        if os.path.lexists(path) and not path.is_dir():
            what = "is a link to nowhere" if path.is_symlink() and not path.exists() else "is not a directory"
            yield _problem(path, what, f"remove it, or {_ELSEWHERE}")
            return
    if to_read:
        return
    there = _there(artifacts)
    try:
        with tempfile.TemporaryFile(dir=there) as probe:  # leaves nothing, not even for a moment where it has no name
            probe.write(b"\0")
    except OSError as error:
        yield _problem(artifacts, f"can't be written: {error.strerror}", _ELSEWHERE)


def room_problems(artifacts: Path) -> Iterator[Problem]:
    """The disk has room for a run that builds something."""
    if (free := shutil.disk_usage(_there(artifacts)).free) < ROOM:
        problem = f"has {free // 2**20} MiB free, too little for a run"
        yield _problem(artifacts, problem, f"free at least {ROOM // 2**20} MiB or set artifacts=DIR")


def _there(artifacts: Path) -> Path:
    return next(path for path in (artifacts, *artifacts.absolute().parents) if path.exists())


def newer_problems(artifacts: Path, specs: Sequence[StageSpec]) -> Iterator[Problem]:
    """Finished stages that a newer version wrote: this one can't know whether it may reuse or replace them."""
    for spec in specs:
        for folder in sorted((artifacts / "cache" / spec.name).glob("[!.]*/")):
            try:
                read_manifest(folder)
            except UnknownSchema as error:
                yield Problem("configuration", "artifacts", str(error).partition(". Upgrade")[0], fix=_NEWER)
                return
            except (Damaged, OSError):  # damage is found, told and put right when the stage is asked for
                continue


def _problem(path: Path, problem: str, fix: str) -> Problem:
    return Problem("configuration", "artifacts", problem, got=_Path(path), fix=fix)


class _Path:
    """Shown as text of bearable length."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return short(str(self.path))
