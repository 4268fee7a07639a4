"""A full check of a published directory: every byte, several files at a time, everything that is wrong named."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

from components.artifacts.directory import (
    MANIFEST,
    Damaged,
    UnknownSchema,
    _sha256,
    listed_files,
    read_manifest,
    walk,
)


def start_check(path: Path, pool: Executor, **belongs: str) -> Callable[[], list[str]]:
    """Begin a full check; what is returned waits for its end and gives all that is wrong, a line per file.

    Args:
        pool: where files are hashed; hashing leaves the interpreter free, so threads do.
        belongs: entries that the manifest must have.

    The returned function raises: UnknownSchema.
    """
    try:
        manifest = read_manifest(path)
        if {name: manifest.get(name) for name in belongs} != belongs:
            raise Damaged(path, f"{MANIFEST}: belongs to {manifest.get('stage')}/{manifest.get('key')}")
        expected = listed_files(path, manifest)
        present = dict(walk(path, skip=(MANIFEST,)))
    except (Damaged, UnknownSchema, OSError) as error:
        return partial(_cannot_check, error)
    found = [f"{name}: missing" for name in sorted(expected.keys() - present.keys())]
    found += [f"{name}: not in the manifest" for name in sorted(present.keys() - expected.keys())]
    hashes: dict[str, Future[str]] = {}
    for name in sorted(expected.keys() & present.keys()):
        if (size := present[name].st_size) != expected[name][1]:
            found.append(f"{name}: {size:,} bytes, the manifest says {expected[name][1]:,}")
        else:
            hashes[name] = pool.submit(_sha256, path / name, present[name])

    def finish() -> list[str]:
        for name, hashed in hashes.items():
            try:
                if hashed.result() != expected[name][0]:
                    found.append(f"{name}: content does not have the sha256 of the manifest")
            except OSError as error:
                found.append(f"{name}: {error}")
        return found

    return finish


def _cannot_check(error: Exception) -> list[str]:
    if isinstance(error, UnknownSchema):
        raise error
    return [error.problem if isinstance(error, Damaged) else str(error)]
