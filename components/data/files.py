"""Files that a user names: there, or told with the working directory; and what they hold as a digest."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import IO

from components.data.corpus import DataError

DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)  # what reading a broken .gz raises


def existing(path: str) -> Path:
    """Raises: DataError naming the path and the working directory if there is no such file."""
    file = Path(path).expanduser()
    if not file.is_file():
        what = "is a directory" if file.is_dir() else "no such file"
        raise DataError(
            f"{path} file: {what} (working directory {Path.cwd()}). Fix: give a file's path from there or from /"
        )
    return file


def digest_of(*paths: str | None) -> str:
    """sha256 over the contents of the files."""
    digest = hashlib.sha256()
    for path in paths:
        if path is not None:
            with existing(path).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def opened(file: Path) -> IO[bytes]:
    """The file's bytes, unpacked if its name ends in ``.gz``; reading may raise `DAMAGED`."""
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def damage(error: Exception) -> tuple[str, str]:
    """(what is wrong with a ``.gz``, remedy)"""
    if "Not a gzipped file" in str(error):
        return f"is not compressed with gzip, as its name says ({error})", "rename it without .gz, or gzip it"
    what = "ends too early" if isinstance(error, EOFError) else "is damaged"
    return f"the gzip file {what} ({error})", "download or write it again"
