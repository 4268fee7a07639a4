"""Removing what a store no longer needs: out of sight by one rename, then from the disk."""

from __future__ import annotations

import os
from pathlib import Path

from components.artifacts import lock
from components.artifacts.directory import remove_tree
from components.artifacts.disk import naming_errors
from components.artifacts.store import QUARANTINE, ArtifactStore

TRASH = ".trash"


def discard(store: ArtifactStore, stage: str, key: str, *, draft: bool = False) -> bool:
    """Take a finished artifact, or the draft of one, out of the store; False if a process is working on it.

    It is gone for everyone at once, whatever happens meanwhile; `empty_trash` frees the disk.
    """
    path = store.draft_path(stage, key) if draft else store.path(stage, key)
    fd = lock.acquire(path.with_name(f"{key}.lock"), f"{stage}/{key}", block=False)
    if fd is None:
        return False
    try:
        _throw(store.root, path)
    finally:
        os.close(fd)
    return True


def quarantined(store: ArtifactStore) -> list[Path]:
    """Damaged artifacts that were set aside."""
    return sorted(path for path in (store.root / QUARANTINE).glob("*/*") if path.suffix != ".txt")


def discard_quarantined(store: ArtifactStore, path: Path) -> None:
    """Remove one of them, with the reason that lies next to it."""
    _throw(store.root, path)
    path.with_name(path.name + ".txt").unlink(missing_ok=True)


def empty_trash(store: ArtifactStore) -> None:
    remove_tree(store.root / TRASH)


def size_of(path: Path) -> int:
    """Bytes of the files below a path."""
    if not path.is_dir():
        return path.stat().st_size if path.exists() else 0
    return sum(entry.stat(follow_symlinks=False).st_size for entry in path.rglob("*") if entry.is_file())


def _throw(root: Path, path: Path) -> None:
    trash = root / TRASH
    with naming_errors("remove", path):
        trash.mkdir(parents=True, exist_ok=True)
        os.rename(path, trash / f"{path.parent.name}.{path.name}.{os.getpid()}.{len(os.listdir(trash))}")
