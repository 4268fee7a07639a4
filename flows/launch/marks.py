"""Whether a process that has been waiting would still load what it has in memory."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

Marks = Mapping[str, tuple[int, int]]


def loaded_files() -> set[Path]:
    """Every file of ours that was imported, and the folders that hold installed packages."""
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    others = (*installed, Path(sysconfig.get_path("stdlib")))
    files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return installed | {file for file in files if not any(file.is_relative_to(place) for place in others)}


def marks_of(paths: Iterable[Path]) -> Marks:
    """Time and size by path; zeros for what is not there."""
    return {str(path): _mark(str(path)) for path in paths}


def are_current(marks: Marks) -> bool:
    """Whether nothing was edited, or installed, since."""
    return all(_mark(path) == mark for path, mark in marks.items())


def _mark(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    except OSError:
        return 0, 0
