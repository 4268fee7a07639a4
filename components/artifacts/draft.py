"""What a checkpoint takes for granted of the draft around it: noted with each checkpoint, brought back on resume.

A stage writes into its draft between checkpoints (rollouts of each step, a line of metrics), and a crash may come after
any of it. Going on from a checkpoint therefore means: the files it knew are there, byte for byte; files written since
are gone; the log of metrics ends where it ended.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from components.artifacts.directory import Damaged, file_digest, remove_tree, walk
from components.artifacts.disk import naming_errors, sync_directory, sync_file

CHECKPOINTS, LOGS = "checkpoints", "logs"
METRICS = f"{LOGS}/metrics.jsonl"
_OWN = (CHECKPOINTS, LOGS, "manifest.json")


def note_draft(draft: Path) -> dict[str, Any]:
    """Make durable what the draft holds besides checkpoints and logs, and describe it (JSON).

    Files that this process has noted before and that have not changed since are not read again.
    """
    files: dict[str, dict[str, Any]] = {}
    folders: set[Path] = set()
    for name, info in walk(draft, skip=_OWN):
        digest, is_new = file_digest(draft / name, info)
        if is_new:
            sync_file(draft / name)
            folders.update(draft / parent for parent in Path(name).parents)
        files[name] = {"sha256": digest, "size": info.st_size}
    metrics = draft / METRICS
    size = metrics.stat().st_size if metrics.exists() else 0
    if size:
        sync_file(metrics)
    for folder in sorted(folders, reverse=True):
        sync_directory(folder)
    return {"files": dict(sorted(files.items())), "metrics": {"sha256": _prefix_digest(metrics, size), "size": size}}


def check_draft(draft: Path, noted: Mapping[str, Any]) -> None:
    """Check that the draft still holds what was noted. Raises: Damaged, naming the first file that is not as it was."""
    for name, entry in noted["files"].items():
        path = draft / name
        try:
            info = path.stat(follow_symlinks=False)
        except OSError as error:
            raise Damaged(draft, f"{name}: missing") from error
        if info.st_size != entry["size"]:
            raise Damaged(draft, f"{name}: {info.st_size:,} bytes, the checkpoint knew {entry['size']:,}")
        if file_digest(path, info)[0] != entry["sha256"]:
            raise Damaged(draft, f"{name}: not the content that the checkpoint knew")
    size = noted["metrics"]["size"]
    if size and _prefix_digest(draft / METRICS, size) != noted["metrics"]["sha256"]:
        raise Damaged(draft, f"{METRICS}: not the content that the checkpoint knew")


def restore_draft(draft: Path, noted: Mapping[str, Any] | None) -> None:
    """Take away what came after ``noted``; with None everything but checkpoints and logs, and all metrics."""
    known = {} if noted is None else noted["files"]
    for name in list(_everything(draft)):
        if name not in known:
            remove_tree(draft / name)
    metrics, size = draft / METRICS, 0 if noted is None else noted["metrics"]["size"]
    if metrics.exists() and metrics.stat().st_size > size:
        with naming_errors("cut back", metrics):
            os.truncate(metrics, size)


def _everything(draft: Path) -> Iterator[str]:
    """Names of all files below the draft, links and the like included, apart from checkpoints and logs."""
    for folder, folders, files in os.walk(draft):
        prefix = Path(folder).relative_to(draft)
        if folder == str(draft):
            folders[:] = [name for name in folders if name not in _OWN]
            files = [name for name in files if name not in _OWN]
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from ((prefix / name).as_posix() for name in (*files, *links))


def _prefix_digest(path: Path, size: int) -> str:
    """sha256 of the first ``size`` bytes; of what there is, if there are fewer."""
    digest = hashlib.sha256()
    if size and path.exists():
        with naming_errors("read", path), path.open("rb") as file:
            while size > 0 and (block := file.read(min(size, 1 << 20))):
                digest.update(block)
                size -= len(block)
    return digest.hexdigest()
