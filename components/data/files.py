"""Files that a user names: there, or told with the working directory; and what they hold as a digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from components.data.corpus import DataError


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
