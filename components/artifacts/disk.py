"""Durable writes, and disk errors that say what could not be written, how large it is and what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT}
_RUST = re.compile(r"\(os error (\d{1,4})\)")


@contextmanager
def naming_errors(action: str, path: Path, size: Callable[[], int | None] = lambda: None) -> Iterator[None]:
    """Re-raise any OSError of the block with the path, the bytes concerned, the space left and a remedy.

    The errno, and with it the exception's class, stays. Packages written in Rust (safetensors, tokenizers) raise errors
    of their own that carry the errno in their text; they become OSErrors too.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, _explain(error.errno, error.strerror or error, action, path, size())) from error
    except Exception as error:
        if (found := _RUST.search(str(error))) is None:
            raise
        raise OSError(int(found[1]), _explain(int(found[1]), error, action, path, size())) from error


def _explain(code: int | None, reason: object, action: str, path: Path, size: int | None) -> str:
    text = f"cannot {action} {path}"
    if size is not None:
        text += f" ({size:,} bytes)"
    text += f": {reason}"
    if code in _FULL:
        text += (
            f"; {_free(path):,} bytes are free there. Free some, or put the artifacts on another disk (artifacts=PATH)"
        )
    elif code == errno.EFBIG:
        text += ". The file-size limit of this process is too low (ulimit -f)"
    elif code == errno.EIO:
        text += ". The disk reports an error: check it, or put the artifacts on another disk (artifacts=PATH)"
    elif code in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        text += ". Something else stands in its place: remove that"
    elif code in (errno.EACCES, errno.EROFS, errno.EPERM):
        text += ". Make it writable for this user, or put the artifacts elsewhere (artifacts=PATH)"
    return text


def _free(path: Path) -> int:
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def sync_file(path: Path) -> None:
    """Flush a file's bytes to the disk."""
    with naming_errors("flush", path, lambda: path.stat().st_size):
        _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries (names created, renamed, removed in it) to the disk."""
    with naming_errors("flush directory", path):
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def unfinished(path: Path) -> Path:
    """Where `write_durably` writes before it renames; a crash may leave it."""
    return path.with_name(f".{path.name}.tmp")


def write_durably(path: Path, text: str) -> None:
    """Write a small text file so that after a crash it is there whole, as it was before, or not at all."""
    data = text.encode()
    temporary = unfinished(path)
    with naming_errors("write", path, lambda: len(data)):
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    sync_directory(path.parent)
