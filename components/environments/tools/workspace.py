"""The files of an episode as a value: a tar archive in memory."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from components.environments.tools.host import Broken

HOME = "/workspace"
_MAX_FILE = 20_000  # characters of a file in the final state
_MAX_PATH, _MAX_NAME = 1024, 255  # bytes
_EPOCH = 1_700_000_000  # of every file that a task begins with


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory as a value.

    Attributes:
        archive: tar of all files. place: the working directory.
    """

    archive: bytes
    place: str = HOME

    @classmethod
    def of(cls, files: Mapping[str, str]) -> Workspace:
        """Files by their paths in the workspace; a path that ends in / is an empty directory. Raises ValueError."""
        buffer = io.BytesIO()
        _check_tree(files)
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path, text in sorted(files.items()):
                pure = _inside(path)
                entry = tarfile.TarInfo(str(pure))
                entry.mtime, entry.mode = _EPOCH, 0o755 if path.endswith("/") else 0o644
                if path.endswith("/"):
                    entry.type = tarfile.DIRTYPE
                    archive.addfile(entry)
                else:
                    data = text.encode()
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
        return cls(buffer.getvalue())

    def files(self) -> dict[str, str | dict[str, str]]:
        """Text of every file by path, ``{"sha256": …}`` of one that is no text or too long; directories end in /, a
        symbolic link is ``{"link": target}``. Raises Broken."""
        found: dict[str, str | dict[str, str]] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(self.archive)) as archive:
                for entry in archive:
                    name = _as_text(str(PurePosixPath(entry.name)))
                    if name in (".", "..") or name.startswith(("/", "../")):
                        continue
                    if entry.isdir():
                        found[f"{name}/"] = ""
                    elif entry.issym():
                        found[name] = {"link": _as_text(entry.linkname)}
                    elif (entry.isreg() or entry.islnk()) and (handle := archive.extractfile(entry)) is not None:
                        found[name] = _readable(handle.read())
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise Broken(f"the workspace cannot be read: {error}") from None
        return dict(sorted(found.items()))


def _inside(path: str) -> PurePosixPath:
    """Raises ValueError: no path of a file in the workspace."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ValueError(f"task files: {path[:80]!r} does not lie in the workspace")
    if "\0" in path or len(path.encode()) > _MAX_PATH or any(len(part.encode()) > _MAX_NAME for part in pure.parts):
        raise ValueError(f"task files: {path[:80]!r} is no name that a file can have")
    return pure


def _check_tree(files: Mapping[str, str]) -> None:
    """Raises ValueError: something would have to lie in a file."""
    plain = {str(PurePosixPath(path)) for path in files if not path.endswith("/")}
    for path in files:
        if within := next((str(above) for above in PurePosixPath(path).parents if str(above) in plain), None):
            raise ValueError(f"task files: {path[:80]!r} would lie in {within[:80]!r}, which is a file")


def _as_text(name: str) -> str:
    """A name that is not UTF-8 with its bytes spelled out."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _readable(data: bytes) -> str | dict[str, str]:
    try:
        text = data.decode() if len(data) <= 4 * _MAX_FILE else "\0"
    except UnicodeDecodeError:
        text = "\0"
    return text if len(text) <= _MAX_FILE and "\0" not in text else {"sha256": hashlib.sha256(data).hexdigest()}
