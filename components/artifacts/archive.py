"""Artifacts in one file, to carry them to another machine: written with every byte checked, read as if by a stranger.

    r1flow-archive.json            what follows: schema, artifacts in order (stage, key, digest, seal, size), run record
    <stage>/<key>/manifest.json    then the artifact's other files

A tar, plain or compressed. It holds no times, owners or modes, so that the same artifacts give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from components.artifacts.directory import MANIFEST, Damaged, listed_files, read_manifest
from components.artifacts.disk import naming_errors, sync_directory

INDEX = "r1flow-archive.json"
SCHEMA = "r1flow-archive/1"
_INDEX_LIMIT = 256 << 20
COMPRESSIONS = {".tar": "none", ".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd"}


class BadArchive(ValueError):
    """A file that is no archive of ours, is cut off or damaged, or holds what an archive must not hold."""


def compression_of(path: Path) -> str:
    """ "none", "gzip" or "zstd", by the name's ending.

    Raises: ValueError naming the endings there are, or what zstd needs.
    """
    kind = next((kind for ending, kind in COMPRESSIONS.items() if path.name.endswith(ending)), None)
    if kind is None:
        raise ValueError(f"{path.name} has none of the endings {', '.join(COMPRESSIONS)}")
    if kind == "zstd" and _zstd() is None:
        raise ValueError(f"{path.name}: zstd needs Python 3.14 or newer. Name the file .tar.gz or .tar")
    return kind


def write_archive(path: Path, directories: Sequence[Path], run: Mapping[str, Any] | None = None) -> int:
    """Write published directories into a new archive; returns its size in bytes.

    Args:
        path: does not exist yet; its ending chooses the compression.
        run: record of the run that the artifacts belong to, to go along.

    Raises:
        Damaged: a file is not what its manifest says; no archive is left behind.
        FileExistsError: there is a file of that name.
        OSError: the disk is full or broken.
    """
    kind = compression_of(path)
    manifests = [(directory, read_manifest(directory)) for directory in directories]
    index = {"schema": SCHEMA, "artifacts": [_entry(manifest) for _, manifest in manifests], "run": run}
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if path.exists():
        raise FileExistsError(f"{path} exists")
    with naming_errors("write", path):
        try:
            with draft.open("xb") as file:
                with (
                    _compressed(file, kind) as stream,
                    tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar,
                ):
                    _add_bytes(tar, INDEX, (json.dumps(index, indent=1, default=str) + "\n").encode())
                    for directory, manifest in manifests:
                        _add_artifact(tar, directory, manifest)
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    sync_directory(path.absolute().parent)
    return path.stat().st_size


@contextmanager
def open_archive(path: Path) -> Iterator[tuple[dict[str, Any], Iterator[tuple[str, int, IO[bytes]]]]]:
    """The index, and then (name, size, content) of every file in order; each is to be read before the next.

    Raises:
        BadArchive: also while reading on; names the member and what is wrong with it.
    """
    with (
        path.open("rb") as file,
        _readable(path),
        _decompressed(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        members = _regular_files(tar)
        name, size, content = next(members, ("", 0, None))
        if name != INDEX or content is None or size > _INDEX_LIMIT:
            raise BadArchive(f"does not begin with {INDEX}: not an archive of r1flow")
        yield _read_index(content.read(size)), members


def _entry(manifest: Mapping[str, Any]) -> dict[str, Any]:
    size = sum(entry["size"] for entry in manifest["files"].values())
    return {**{name: manifest[name] for name in ("stage", "key", "digest", "seal")}, "size": size}


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _add_artifact(tar: tarfile.TarFile, directory: Path, manifest: Mapping[str, Any]) -> None:
    prefix = f"{manifest['stage']}/{manifest['key']}"
    _add_bytes(tar, f"{prefix}/{MANIFEST}", (directory / MANIFEST).read_bytes())
    for name, (sha256, size) in sorted(listed_files(directory, manifest).items()):
        try:
            with (directory / name).open("rb") as file:
                reader = _Hashing(file)
                member = tarfile.TarInfo(f"{prefix}/{name}")
                member.size = size
                tar.addfile(member, reader)  # type: ignore[arg-type]
                reader.read(1)  # one byte more than the manifest says would change the hash
        except FileNotFoundError:
            raise Damaged(directory, f"{name}: missing") from None
        except OSError as error:
            if str(error) == "unexpected end of data":
                raise Damaged(directory, f"{name}: shorter than the {size:,} bytes of the manifest") from error
            raise
        if reader.digest.hexdigest() != sha256:
            raise Damaged(directory, f"{name}: content does not have the sha256 of the manifest")


class _Hashing:
    """A file that hashes what is read of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.digest.update(data)
        return data


def _regular_files(tar: tarfile.TarFile) -> Iterator[tuple[str, int, IO[bytes]]]:
    for member in tar:
        if member.type != tarfile.REGTYPE or member.sparse is not None:
            raise BadArchive(f"{member.name!r} is a link, a folder, a device or sparse; only plain files are taken")
        content = tar.extractfile(member)
        assert content is not None
        yield member.name, member.size, content


def _read_index(data: bytes) -> dict[str, Any]:
    index = json.loads(data)
    schema = index.get("schema") if isinstance(index, dict) else None
    if schema != SCHEMA:
        raise BadArchive(f"{INDEX}: schema {schema!r}, this version reads {SCHEMA}")
    entries = index.get("artifacts")
    for entry in entries if isinstance(entries, list) else ["nothing"]:
        if not _describes_an_artifact(entry):
            raise BadArchive(f"{INDEX}: {str(entry)[:80]} does not describe an artifact")
    return index


def _describes_an_artifact(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("size"), int):
        return False
    return all(isinstance(entry.get(name), str) for name in ("stage", "key", "digest", "seal"))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What tar, the decompressor and the parser say of a bad file becomes BadArchive with its name."""
    try:
        yield
    except BadArchive as error:
        raise BadArchive(f"{path}: {error}") from error
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, RecursionError) as error:
        raise BadArchive(f"{path}: not readable as an archive, or cut off ({error})") from error


@contextmanager
def _compressed(file: IO[bytes], kind: str) -> Iterator[IO[bytes]]:
    if kind == "none":
        yield file
    elif kind == "gzip":
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as stream:
            yield stream  # type: ignore[misc]
    else:
        with _zstd().ZstdFile(file, "wb") as stream:
            yield stream


@contextmanager
def _decompressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=file, mode="rb") as stream:
            yield stream  # type: ignore[misc]
    elif magic == b"\x28\xb5\x2f\xfd":
        if _zstd() is None:
            raise BadArchive("is compressed with zstd, which needs Python 3.14 or newer; decompress it first (zstd -d)")
        with _zstd().ZstdFile(file, "rb") as stream:
            yield stream
    else:
        yield file


def _zstd() -> Any:
    """The standard library's module, from Python 3.14 on."""
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return None
