"""Finding, claiming, publishing and checking artifacts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from components.artifacts import lock
from components.artifacts.check import start_check
from components.artifacts.claim import Claim, as_artifact, last_step
from components.artifacts.directory import (
    MANIFEST,
    Damaged,
    UnknownSchema,
    load_directory,
    read_manifest,
    remove_tree,
)
from components.artifacts.disk import naming_errors
from components.artifacts.jsonio import check_name
from components.runtime import StageArtifact

QUARANTINE = ".quarantine"
_SUFFIXES = (".partial", ".lock")


class ArtifactStore:
    """All artifacts below one root.

    Args:
        root: made when first written to.
        run: name of the run on whose behalf artifacts are built; recorded in their manifests.
        always_hash: patterns of files whose sha256 is checked at every reuse, not only on request.
    """

    def __init__(self, root: Path | str, *, run: str = "", always_hash: Iterable[str] = ("*.safetensors",)):
        self.root = Path(root).resolve()
        self.run = run
        self.always_hash = tuple(always_hash)

    def path(self, stage: str, key: str) -> Path:
        """Where that artifact lies, or would."""
        check_name(stage, "stage")
        check_name(key, "key")
        if key.endswith(_SUFFIXES):
            raise ValueError(f"key {key!r} must not end in {' or '.join(_SUFFIXES)}: those names are the store's own")
        return self.root / stage / key

    def draft_path(self, stage: str, key: str) -> Path:
        """Where that artifact is built."""
        path = self.path(stage, key)
        return path.with_name(path.name + ".partial")

    @contextmanager
    def claim(self, stage: str, key: str, *, on_wait: Callable[[str], None] | None = None) -> Iterator[Claim]:
        """Be the only process that builds or adopts this artifact; waits while another one does.

        The lock ends with the block or with the process, however it dies, and with every process that was given a
        copy of ``Claim.lock_fd``. The draft stays on failure, so that the next claim can go on from its checkpoints.
        """
        fd = lock.acquire(self.lock_path(stage, key), f"{stage}/{key}", on_wait)
        assert fd is not None
        claim = Claim(self, stage, key, fd)
        try:
            claim.guard(on_wait)
            yield claim
        finally:
            claim.close()
            os.close(fd)  # not LOCK_UN: a worker that still writes keeps the lock through its copy

    def find(self, stage: str, key: str, *, full: bool = False) -> StageArtifact | None:
        """The verified artifact, or None. A damaged one is moved to quarantine, unless someone is working on it or the
        store can't be written.

        Raises: UnknownSchema for one written by a newer version.
        """
        try:
            return self.load(stage, key, full)
        except Damaged:
            with suppress(OSError):  # whoever builds it anew tries again, and says what keeps it there
                self._set_aside_if_damaged(stage, key, full)
            return None

    def manifest(self, stage: str, key: str) -> dict[str, Any]:
        """The manifest of an artifact. Raises Damaged if there is none."""
        return read_manifest(self.path(stage, key))

    def ls(self, stage: str | None = None) -> list[dict[str, Any]]:
        """Manifests of all artifacts (of one stage), oldest first, each with ``path``, ``size`` (bytes), ``problem``.

        ``problem`` is "" or says why the manifest cannot be read; files are not looked at, see `verify`.
        """
        rows = []
        for name, key in self._entries(stage):
            path = self.path(name, key)
            row: dict[str, Any] = {"stage": name, "key": key, "created": "", "metrics": {}, "problem": ""}
            try:
                row |= read_manifest(path)
            except (Damaged, UnknownSchema, OSError) as error:
                row["problem"] = str(error)
            row |= {"path": path, "size": sum(entry["size"] for entry in row.get("files", {}).values())}
            rows.append(row)
        return sorted(rows, key=lambda row: (row["created"], row["stage"], row["key"]))

    def drafts(self) -> list[dict[str, Any]]:
        """Artifacts begun but not finished: stage, key, path and the last checkpointed step (None without one)."""
        paths = sorted(self.root.glob("[!.]*/*.partial"))
        return [
            {
                "stage": path.parent.name,
                "key": path.name.removesuffix(".partial"),
                "path": path,
                "step": last_step(path),
            }
            for path in paths
        ]

    def verify(self, only: Collection[tuple[str, str]] | None = None) -> list[tuple[str, str, str]]:
        """Hash every byte of artifacts, several files at a time: (stage, key, problem), problem "" if it is whole.

        Damaged ones go to quarantine where the store can be written; the problem names every damaged file.

        Args:
            only: these (stage, key); all by default.
        """
        entries = [entry for entry in self._entries() if only is None or entry in only]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            begun = [start_check(self.path(stage, key), pool, stage=stage, key=key) for stage, key in entries]
            return [(*entry, self._settled(*entry, finish)) for entry, finish in zip(entries, begun, strict=True)]

    def _settled(self, stage: str, key: str, finish: Callable[[], list[str]]) -> str:
        try:
            problems = finish()
        except UnknownSchema as error:
            return str(error)
        if not problems:
            return ""
        try:
            moved = self._set_aside_if_damaged(stage, key, full=True)
        except OSError as error:
            return "; ".join(problems) + f" (left where it is: {error.strerror or error})"
        return "; ".join(problems) + (f" (moved to {moved})" if moved else " (in use, left where it is)")

    def quarantined(self, stage: str, key: str) -> str | None:
        """Why this artifact was last moved to quarantine, if it was."""
        reasons = sorted((self.root / QUARANTINE / stage).glob(f"{key}.*.txt"))
        return reasons[-1].read_text().strip() if reasons else None

    def _entries(self, only: str | None = None) -> list[tuple[str, str]]:
        """(stage, key) of everything that stands where a finished artifact would."""
        pattern = "[!.]*/[!.]*" if only is None else f"{check_name(only, 'stage')}/[!.]*"
        found = (path for path in self.root.glob(pattern) if not path.name.endswith(_SUFFIXES))
        return sorted((path.parent.name, path.name) for path in found)

    def lock_path(self, stage: str, key: str) -> Path:
        """The file whose lock is the right to build that artifact."""
        path = self.path(stage, key)
        return path.with_name(path.name + ".lock")

    def load(self, stage: str, key: str, full: bool = False) -> StageArtifact | None:
        """The verified artifact, or None if there is none. Raises: Damaged, UnknownSchema; moves nothing."""
        path = self.path(stage, key)
        if not os.path.lexists(path):
            return None
        manifest = load_directory(path, full=full, always=self.always_hash)
        if (manifest.get("stage"), manifest.get("key")) != (stage, key):
            raise Damaged(path, f"{MANIFEST}: belongs to {manifest.get('stage')}/{manifest.get('key')}")
        return as_artifact(path, manifest, cached=True)

    def _set_aside_if_damaged(self, stage: str, key: str, full: bool) -> Path | None:
        """Under the lock, so that one just rebuilt by someone else isn't taken for the damaged one."""
        fd = lock.acquire(self.lock_path(stage, key), f"{stage}/{key}", block=False)
        if fd is None:
            return None
        try:
            self.load(stage, key, full)
            return None
        except Damaged as error:
            return self.set_aside(stage, key, error)
        finally:
            os.close(fd)

    def set_aside(self, stage: str, key: str, error: Damaged) -> Path:
        """Move a damaged artifact to quarantine, with the reason in a file next to it. Call under its lock."""
        folder = self.root / QUARANTINE / stage
        with naming_errors("move to quarantine", error.path):
            folder.mkdir(parents=True, exist_ok=True)
            number = 1 + len(list(folder.glob(f"{key}.*.txt")))
            target = folder / f"{key}.{number:03d}"
            remove_tree(target)
            target.with_suffix(f".{number:03d}.txt").write_text(error.problem + "\n")
            os.rename(error.path, target)
        return target
