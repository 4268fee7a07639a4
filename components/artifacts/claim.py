"""The right to build one artifact: its draft, what may already be there, and the commit."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.artifacts import lock
from components.artifacts.directory import MANIFEST, Damaged, commit_directory, finish_directory, remove_tree
from components.artifacts.disk import naming_errors
from components.artifacts.draft import CHECKPOINTS
from components.artifacts.jsonio import canonical_json, plain_json
from components.runtime import StageArtifact

if TYPE_CHECKING:
    from components.artifacts.store import ArtifactStore

_STEP = re.compile(r"step-(\d{6,})")
_RECORDED = ("r1flow", "torch", "transformers", "safetensors", "numpy")


class Claim:
    """The right to build one artifact, held while the ``with`` block of `ArtifactStore.claim` runs.

    Attributes:
        lock_fd: descriptor of the lock. Give a copy to every process that writes into the draft
            (``pass_fds=(claim.lock_fd,)``, or ``multiprocessing.reduction.DupFd(claim.lock_fd)``), so that nobody else
            starts while one of them lives. It is closed on exec otherwise.
        waited_s: seconds the launcher spent waiting for free cores; not part of the stage's wall time.
    """

    def __init__(self, store: ArtifactStore, stage: str, key: str, lock_fd: int):
        self.store, self.stage, self.key, self.lock_fd = store, stage, key, lock_fd
        self._lock = store.lock_path(stage, key)
        self.set_aside: str | None = None
        self.waited_s = 0.0
        self._path, self._draft = store.path(stage, key), store.draft_path(stage, key)
        self._draft_fd: int | None = None

    @property
    def step(self) -> int | None:
        """Last checkpointed step in the draft, None if it has no step checkpoint."""
        return last_step(self._draft)

    @property
    def begun(self) -> bool:
        """Whether the draft has anything to go on from."""
        return was_begun(self._draft)

    @cached_property
    def resumed_at(self) -> int | None:
        """The step at which this claim found the draft."""
        return self.step

    @cached_property
    def draft(self) -> Path:
        """The directory to build in. What an interrupted build left is kept if it has checkpoints, else cleared."""
        _ = self.resumed_at
        if not self.begun:
            remove_tree(self._draft)
        remove_tree(self._draft / MANIFEST)
        with naming_errors("make", self._draft):
            self._draft.mkdir(parents=True, exist_ok=True)
        self.guard()
        return self._draft

    def guard(self, on_wait: Callable[[str], None] | None = None) -> None:
        """Lock the draft itself; waits for a process that builds in it although its lock file is gone."""
        if self._draft_fd is None or not lock.is_at(self._draft_fd, self._draft):
            self.close()
            self._draft_fd = lock.acquire_folder(self._draft, f"{self.stage}/{self.key}", on_wait)

    def close(self) -> None:
        """Let go of the draft."""
        if self._draft_fd is not None:
            os.close(self._draft_fd)
            self._draft_fd = None

    def _check_still_ours(self) -> None:
        """Raises: OSError (ESTALE) if someone else may have built here, because lock file and draft were taken away."""
        if lock.is_at(self.lock_fd, self._lock) or (
            self._draft_fd is not None and lock.is_at(self._draft_fd, self._draft)
        ):
            return
        text = f"{self._lock} was deleted while {self.stage} was built, and another process works on {self._draft}"
        raise OSError(errno.ESTALE, f"{text}. Not published. Fix: leave lock files alone; they hold no space")

    def existing(self) -> StageArtifact | None:
        """The finished artifact, verified; None if it has to be built.

        A damaged one is moved to quarantine (``set_aside`` then says why); a commit that was interrupted is finished.
        """
        try:
            if (found := self.store.load(self.stage, self.key)) is not None:
                return found
        except Damaged as error:
            moved = self.store.set_aside(self.stage, self.key, error)
            self.set_aside = f"{error.problem} (moved to {moved})"
        if finish_directory(self._draft, self._path, drop=(CHECKPOINTS,)) is None:
            return None
        return self.store.load(self.stage, self.key)

    def commit(
        self,
        *,
        metrics: Mapping[str, Any],
        parents: Mapping[str, StageArtifact],
        spec: Mapping[str, Any],
        wall_s: float,
    ) -> StageArtifact:
        """Publish the draft, without its ``checkpoints/``, as the artifact.

        Raises: as `commit_directory`; TypeError or ValueError naming a metric or setting that JSON cannot hold. The
            draft with its checkpoints is then still there.
        """
        self._check_still_ours()
        canonical_json(spec, "spec")
        extra = {
            "stage": self.stage,
            "key": self.key,
            "parents": {n: {"stage": p.stage, "key": p.key, "digest": p.digest} for n, p in sorted(parents.items())},
            "spec": plain_json(spec, "spec"),
            "metrics": plain_json(metrics),
            "versions": _versions(),
            "run": self.store.run,
            "resumed_at": self.resumed_at,
            "wall_s": round(wall_s, 3),
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        manifest = commit_directory(self.draft, self._path, extra, drop=(CHECKPOINTS,))
        return as_artifact(self._path, manifest, cached=False)


def last_step(draft: Path) -> int | None:
    """Highest k of the ``checkpoints/step-<k>`` directories in a draft."""
    folder = draft / CHECKPOINTS
    if not folder.is_dir():
        return None
    steps = (_STEP.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return max((int(match[1]) for match in steps if match), default=None)


def was_begun(draft: Path) -> bool:
    """Whether a draft has checkpoints of any kind: of steps, or of samples drawn."""
    folder = draft / CHECKPOINTS
    return folder.is_dir() and any(folder.iterdir())


def as_artifact(path: Path, manifest: Mapping[str, Any], *, cached: bool) -> StageArtifact:
    parents = {name: f"{parent['stage']}/{parent['key']}" for name, parent in manifest["parents"].items()}
    return StageArtifact(
        stage=manifest["stage"],
        key=manifest["key"],
        path=path,
        digest=manifest["digest"],
        metrics=manifest["metrics"],
        parents=parents,
        cached=cached,
    )


@cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for name in _RECORDED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
