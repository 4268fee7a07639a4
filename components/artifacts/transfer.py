"""Taking artifacts from an archive into a store: all verified before the first is there, all or none of them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from components.artifacts.archive import BadArchive, open_archive
from components.artifacts.directory import (
    MANIFEST,
    Damaged,
    UnknownSchema,
    content_digest,
    listed_files,
    publish_directory,
    read_manifest,
    remove_tree,
)
from components.artifacts.disk import naming_errors, sync_directory
from components.artifacts.store import ArtifactStore

INCOMING = ".incoming"
_BLOCK = 1 << 20
_MANIFEST_LIMIT = 64 << 20


@dataclass
class Received:
    """What an archive held.

    Attributes:
        imported, present: (stage, key) of artifacts that were taken in, and of those that were there already.
        run: record of the run they belong to, as found: not checked.
    """

    imported: list[tuple[str, str]] = field(default_factory=list)
    present: list[tuple[str, str]] = field(default_factory=list)
    run: Mapping[str, Any] | None = None


def receive(archive: Path, store: ArtifactStore, on_wait: Callable[[str], None] | None = None) -> Received:
    """Take the artifacts of an archive into the store, once the last of them is verified.

    Nothing of the archive is trusted: names stay inside the artifact's own folder, only plain files that its manifest
    lists are written, sizes and hashes are compared, the manifest with its own seal and with the archive's index.

    Args:
        on_wait: told whom we wait for, if another process is building one of them.

    Raises:
        BadArchive: names the member; nothing has been taken in.
        OSError: the disk is full or broken.
    """
    received = Received()
    incoming: dict[tuple[str, str], Path] = {}
    try:
        _unpack(archive, store, received, incoming)
        for where, folder in incoming.items():
            with store.claim(*where, on_wait=on_wait) as claim:
                if claim.existing() is None:
                    publish_directory(folder, store.path(*where))
            received.imported.append(where)
    finally:
        for folder in incoming.values():
            remove_tree(folder)
    return received


def _unpack(archive: Path, store: ArtifactStore, received: Received, incoming: dict[tuple[str, str], Path]) -> None:
    """Write what is not there yet next to the store's stages, verified; ``incoming`` says where."""
    with open_archive(archive) as (index, members):
        entries = {(entry["stage"], entry["key"]): entry for entry in index["artifacts"]}
        received.run = index.get("run") if isinstance(index.get("run"), dict) else None
        missing = {where: entry for where, entry in entries.items() if not _is_there(store, *where)}
        _has_room(store.root, sum(entry["size"] for entry in missing.values()))
        for where, files in _by_artifact(members):
            if where not in entries or where in (*incoming, *received.present):
                raise BadArchive(f"{'/'.join(where)}: not in the index, or twice in the archive")
            if where not in missing:
                received.present.append(where)
                continue
            incoming[where] = store.root / INCOMING / f"{where[0]}.{where[1]}.{os.getpid()}"
            _write(incoming[where], files, entries[where])
        if lost := [where for where in missing if where not in incoming]:
            raise BadArchive(f"is cut off: {'/'.join(lost[0])} is missing")


def _is_there(store: ArtifactStore, stage: str, key: str) -> bool:
    try:
        return store.find(stage, key) is not None
    except UnknownSchema as error:
        raise BadArchive(str(error)) from error


def _has_room(root: Path, wanted: int) -> None:
    there = next(path for path in (root, *root.parents) if path.exists())
    if (free := shutil.disk_usage(there).free) < wanted:
        raise BadArchive(f"needs {wanted:,} bytes and {root} has {free:,} free. Free some, or use another disk")


_Member = tuple[str, int, IO[bytes]]


def _by_artifact(members: Iterator[_Member]) -> Iterator[tuple[tuple[str, str], Iterator[_Member]]]:
    """Members grouped by the artifact they belong to, with the names they have in it."""
    pending: _Member | None = next(members, None)

    def of(where: tuple[str, str]) -> Iterator[_Member]:
        nonlocal pending
        while pending is not None and (found := _place(pending[0]))[:2] == where:
            yield (found[2], *pending[1:])
            pending = next(members, None)

    while pending is not None:
        where = _place(pending[0])[:2]
        files = of(where)
        yield where, files
        for _ in files:  # of one that was there already
            pass


def _place(member: str) -> tuple[str, str, str]:
    """Stage, key and file. Raises: BadArchive for a name that could lead anywhere else."""
    parts = member.split("/")
    if len(parts) < 3 or any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise BadArchive(f"{member!r} is no name of a file of an artifact")
    return parts[0], parts[1], "/".join(parts[2:])


def _write(folder: Path, files: Iterator[_Member], entry: Mapping[str, Any]) -> None:
    """An artifact's files, durable and as its manifest says."""
    name, size, content = next(files)
    where = f"{entry['stage']}/{entry['key']}"
    if name != MANIFEST or size > _MANIFEST_LIMIT:
        raise BadArchive(f"{where}: does not begin with a {MANIFEST}")
    remove_tree(folder)
    folder.mkdir(parents=True)
    _store(folder / MANIFEST, size, content)
    try:
        manifest = read_manifest(folder)
        expected = listed_files(folder, manifest)
    except (Damaged, UnknownSchema) as error:
        raise BadArchive(f"{where}: {getattr(error, 'problem', error)}") from error
    same = all(manifest.get(key) == entry[key] for key in ("stage", "key", "digest", "seal"))
    if not same or manifest["digest"] != content_digest(manifest["files"]):
        raise BadArchive(f"{where}: its manifest is not the one the index describes")
    for name, size, content in files:
        sha256, wanted = expected.pop(name, ("", -1))
        if size != wanted:
            problem = "twice, or not in the manifest" if wanted < 0 else f"{size:,} bytes, the manifest says {wanted:,}"
            raise BadArchive(f"{where}/{name}: {problem}")
        if _store(folder / name, size, content) != sha256:
            raise BadArchive(f"{where}/{name}: content does not have the sha256 of the manifest")
    if expected:
        raise BadArchive(f"{where}/{min(expected)}: missing, the archive is cut off")
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        sync_directory(path)


def _store(path: Path, size: int, content: IO[bytes]) -> str:
    """Write one file durably; its sha256."""
    digest = hashlib.sha256()
    with naming_errors("write", path, lambda: size):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            while block := content.read(_BLOCK):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return digest.hexdigest()
