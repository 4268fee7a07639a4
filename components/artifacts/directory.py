"""A directory that is there whole or not at all: manifest, atomic rename, verification."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from components.artifacts.disk import naming_errors, sync_directory, sync_file, unfinished, write_durably
from components.artifacts.jsonio import canonical_json

MANIFEST = "manifest.json"
SCHEMA = "r1flow/1"
_SMALL = 16 << 20  # bytes; a file of at most this size is hashed at every reuse
_OWN = ("schema", "files", "digest", "seal")
_RACY_NS = 100_000_000  # a file written this recently could change again within one tick of the file system's clock
_hashed: dict[tuple[int, int, int, int], str] = {}  # (device, inode, size, mtime) -> sha256, of this process


class Damaged(Exception):
    """A directory is not what its manifest says, or has none. ``path`` is the directory, ``problem`` names the file."""

    def __init__(self, path: Path, problem: str):
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class UnknownSchema(Exception):
    """A manifest written by a newer version; the directory may be fine and must not be touched."""


def commit_directory(
    temporary: Path, final: Path, extra: Mapping[str, Any], *, drop: Iterable[str] = ()
) -> dict[str, Any]:
    """Publish ``temporary`` as ``final``; a crash at any moment leaves ``final`` whole or absent.

    Order: fsync every file → fsync its directories → manifest (sha256 and size per file) → remove ``drop`` → rename →
    fsync the parent. ``drop`` names entries that are not published; they go only once the manifest is durable, so that
    an interrupted commit either still has them or can be finished by `finish_directory`.

    Args:
        extra: further entries of the manifest, JSON values.

    Returns: the manifest.

    Raises:
        ValueError: the directory holds a symbolic link, a device or a ``manifest.json`` of its own.
        OSError: names the path and the bytes concerned; ``final``, if it existed, is as it was.
    """
    temporary, final, drop = Path(temporary), Path(final), tuple(drop)
    if clash := sorted(set(_OWN) & set(extra)):
        raise ValueError(f"extra entries {clash} of the manifest of {final} are the store's own names")
    if os.path.lexists(temporary / MANIFEST):
        raise ValueError(f"{temporary / MANIFEST}: this name is the store's own. Give the file another name")
    remove_tree(unfinished(temporary / MANIFEST))
    files = {}
    folders = {temporary}
    try:
        for name, info in walk(temporary, skip=drop):
            path = temporary / name
            sync_file(path)
            files[name] = {"sha256": _sha256(path, info), "size": info.st_size}
            folders.update(temporary / parent for parent in Path(name).parents)
    except Damaged as error:
        raise ValueError(f"cannot publish {final}: {error.problem}. Write a regular file instead") from error
    for folder in sorted(folders, reverse=True):
        sync_directory(folder)
    manifest = {"schema": SCHEMA, **extra, "files": dict(sorted(files.items())), "digest": content_digest(files)}
    manifest["seal"] = _seal(manifest)
    write_durably(temporary / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=True, allow_nan=False) + "\n")
    publish_directory(temporary, final, drop)
    return manifest


def finish_directory(temporary: Path, final: Path, *, drop: Iterable[str] = ()) -> dict[str, Any] | None:
    """Finish a commit that was interrupted after its manifest was written; None if there is nothing to finish."""
    if not (temporary / MANIFEST).exists():
        return None
    try:
        manifest = load_directory(temporary, full=True, ignore=drop)
    except Damaged:
        return None
    publish_directory(temporary, final, tuple(drop))
    return manifest


def publish_directory(temporary: Path, final: Path, drop: tuple[str, ...] = ()) -> None:
    """The last step of a commit: rename a directory whose files and manifest are durable into place."""
    for name in drop:
        remove_tree(temporary / name)
    sync_directory(temporary)
    aside = final.with_name(f".replaced-{final.name}")
    remove_tree(aside)
    with naming_errors("rename into place", final):
        if final.exists():
            os.rename(final, aside)
        try:
            os.rename(temporary, final)
        except OSError:
            if aside.exists():
                os.rename(aside, final)
            raise
    sync_directory(final.parent)
    remove_tree(aside)


def load_directory(
    path: Path, *, full: bool, always: Iterable[str] = ("*.safetensors",), ignore: Iterable[str] = ()
) -> dict[str, Any]:
    """The manifest of a published directory, once the directory agrees with it.

    Quick: the manifest's own seal, the set of files and their sizes, and the sha256 of files that match ``always`` or
    have at most 16 MiB (unless this process has hashed the same unchanged file before). Full: every sha256, from the
    bytes.

    Raises:
        Damaged: names the file and what is wrong with it.
        UnknownSchema: the manifest is of a newer version.
    """
    path = Path(path)
    manifest = read_manifest(path)
    expected = listed_files(path, manifest)
    present = dict(walk(path, skip=(MANIFEST, *ignore)))
    if missing := sorted(expected.keys() - present.keys()):
        raise Damaged(path, f"{missing[0]}: missing{_others(missing)}")
    if foreign := sorted(present.keys() - expected.keys()):
        raise Damaged(path, f"{foreign[0]}: not in the manifest{_others(foreign)}")
    for name, info in present.items():
        sha256, size = expected[name]
        if info.st_size != size:
            raise Damaged(path, f"{name}: {info.st_size:,} bytes, the manifest says {size:,}")
        if (full or size <= _SMALL or any(fnmatch.fnmatch(name, pattern) for pattern in always)) and (
            _sha256(path / name, info, trust=not full) != sha256
        ):
            raise Damaged(path, f"{name}: content does not have the sha256 of the manifest")
    return manifest


def listed_files(path: Path, manifest: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """(sha256, size) of every file that a manifest lists. Raises: Damaged."""
    try:
        return {name: (entry["sha256"], entry["size"]) for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(path, f"{MANIFEST}: no usable list of files ({error!r})") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest alone, parsed and checked against its own seal; says nothing about the files."""
    if path.is_symlink():
        raise Damaged(path, "is a symbolic link")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise Damaged(path, f"{MANIFEST}: missing") from None
    except NotADirectoryError:
        raise Damaged(path, "is not a folder") from None
    except IsADirectoryError:
        raise Damaged(path, f"{MANIFEST}: is a folder, not a file") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"{MANIFEST}: not JSON ({error})") from error
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    family, _, version = str(schema).partition("/")
    if family != "r1flow" or not version.isdigit():
        raise Damaged(path, f"{MANIFEST}: not a manifest of r1flow (schema {schema!r})")
    if int(version) > int(SCHEMA.partition("/")[2]):
        raise UnknownSchema(
            f"{path / MANIFEST}: written by a newer r1flow (schema {schema}, this one reads up to {SCHEMA}). "
            "Upgrade r1flow, or use another artifacts folder (artifacts=PATH)"
        )
    if manifest.get("seal") != _seal(manifest):
        raise Damaged(path, f"{MANIFEST}: its content does not have the sha256 it was sealed with")
    return manifest


def content_digest(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest of names and contents, without ``logs/``: equal content keeps what was built from it valid."""
    content = {name: entry["sha256"] for name, entry in files.items() if not name.startswith("logs/")}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def remove_tree(path: Path) -> None:
    """Remove a file, link or directory tree if it is there."""
    with naming_errors("remove", path), contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def walk(root: Path, skip: Iterable[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files below root as (posix name, stat), in no order; anything but files and folders is damage."""
    pending = [""]
    skip = set(skip)
    while pending:
        prefix = pending.pop()
        with naming_errors("list", root / prefix), os.scandir(root / prefix) as folder:
            entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in folder]
        for entry, info in entries:
            name = prefix + entry
            if name in skip:
                continue
            if stat.S_ISDIR(info.st_mode):
                pending.append(name + "/")
            elif stat.S_ISREG(info.st_mode):
                yield name, info
            else:
                raise Damaged(root, f"{name}: neither a regular file nor a folder")


def _sha256(path: Path, info: os.stat_result, *, trust: bool = False) -> str:
    """sha256 of a file; with ``trust`` this process's memory of the same unchanged inode will do."""
    key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    if trust and key in _hashed:
        return _hashed[key]
    with naming_errors("read", path, lambda: info.st_size), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - info.st_mtime_ns > _RACY_NS:
        _hashed[key] = digest
    return digest


def file_digest(path: Path, info: os.stat_result) -> tuple[str, bool]:
    """(sha256, whether it was read just now): an unchanged file that this process has read before is not read again."""
    known = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns) in _hashed
    return _sha256(path, info, trust=True), not known


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        canonical_json({k: v for k, v in manifest.items() if k != "seal"}, "manifest").encode()
    ).hexdigest()


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
