"""One stage: what it is made of, the key that follows from it, and reuse, resume or build."""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from components.artifacts import ArtifactStore, Claim, canonical_json, check_name, last_step, was_begun
from components.runtime import StageArtifact
from flows.explain import changes, one_line
from flows.run_only import key_settings
from flows.source import digest_of, source_files

KEY_VERSION = 1
Parents = Mapping[str, StageArtifact]
Say = Callable[..., None]  # say(text), or say(text, level="warning", …) with what else belongs into the event
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class StageSpec:
    """A stage of a pipeline, resolved.

    Attributes:
        name: unique in the pipeline; also the first part of the artifact's path and of every random address.
        target: dotted path of the stage function ``fn(inputs, out, **settings) -> metrics``.
        inputs: input name → name of the stage whose artifact it is.
        settings: JSON values; nodes to be built still with their ``_target_``.
        seed: of the run.
        launcher: node that says where it runs; never part of the key.
        retries: how often it is tried again after a cause that may pass by itself; never part of the key.
        gate: what the promotion gate does about it (see `flows.gate`), None for what the run says; never part of the
            key.
    """

    name: str
    target: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    launcher: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    gate: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "stage")


def targets(spec: StageSpec) -> list[str]:
    """The stage function and every ``_target_`` in its settings: the code it runs."""
    return sorted({spec.target, *_targets_in(key_settings(spec.settings, spec.target))})


def _targets_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(target := value.get("_target_"), str):
            yield target
        for item in value.values():
            yield from _targets_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _targets_in(item)


def stage_key(spec: StageSpec, parents: Parents, source_digest: str) -> str:
    """20 hexadecimal digits of: name, target, settings that matter, seed, the parents' content and the source code.

    Neither times nor the parents' keys enter: a parent rebuilt to equal content keeps its children.

    Raises: ValueError or TypeError naming the setting that JSON cannot hold.
    """
    made_of = {
        "version": KEY_VERSION,
        "name": spec.name,
        "target": spec.target,
        "settings": key_settings(spec.settings, spec.target),
        "seed": spec.seed,
        "parents": {name: parent.digest for name, parent in parents.items()},
        "source": source_digest,
    }
    canonical_json(made_of["settings"], spec.name)  # so that an error says rl_1.steps
    return hashlib.sha256(canonical_json(made_of, spec.name).encode()).hexdigest()[:20]


def same_but_for_code(
    spec: StageSpec, parents: Parents, source: Mapping[str, str], store: ArtifactStore
) -> tuple[StageArtifact, list[str]] | None:
    """The newest whole artifact that differs from this stage in nothing but source files, and how these differ."""
    new = _manifest_spec(spec, source) | {"parents": {name: _parent(parent) for name, parent in parents.items()}}
    for row in reversed(store.ls(spec.name)):
        old = row.get("spec", {}) | {"parents": row.get("parents", {})}
        if row["problem"] or _without_code(old) != _without_code(new):
            continue
        if (found := store.find(spec.name, row["key"])) is not None:
            return found, changes(old, new)
    return None


def _without_code(made_of: Mapping[str, Any]) -> str:
    parents = {name: (parent or {}).get("digest") for name, parent in made_of["parents"].items()}
    return canonical_json([made_of.get("target"), made_of.get("settings"), made_of.get("seed"), parents])


def despite_code(edited: list[str]) -> str:
    """What is said whenever an artifact of other code is reused."""
    return f"reused although its code changed since (cache.code=ignore): {one_line(edited)}"


def explain(spec: StageSpec, parents: Mapping[str, StageArtifact | None], store: ArtifactStore) -> str:
    """Why this stage would be built now, in one line; "reused" if it wouldn't.

    Compares with the artifact of this stage that differs least, of those the newest: "algorithm.eps_high: 0.2 → 0.3",
    "source components/losses/kl.py edited", "input base changed (…)", "never built", "interrupted at step 9".

    Args:
        parents: artifact per input; None (or nothing) for an input that is itself still to be built.
    """
    source = source_files(targets(spec))
    known = {name: artifact for name in spec.inputs if (artifact := parents.get(name)) is not None}
    pending = [f"input {name} is to be built" for name in spec.inputs if name not in known]
    if pending:
        own = _nearest(spec, known, source, store)
        return one_line([*(["never built"] if own is None else own), *pending])
    key = stage_key(spec, known, digest_of(source))
    return "reused" if store.find(spec.name, key) is not None else _why(spec, known, source, store, key)


def own_changes(spec: StageSpec, known: Parents, store: ArtifactStore) -> list[str] | None:
    """What differs from the nearest earlier artifact, inputs still to be built left aside; None without an artifact.

    Args:
        known: artifacts of the inputs that are there.
    """
    return _nearest(spec, known, source_files(targets(spec)), store)


def _nearest(spec: StageSpec, known: Parents, source: Mapping[str, str], store: ArtifactStore) -> list[str] | None:
    parents = {name: _parent(known[name]) if name in known else None for name in spec.inputs}
    new = _manifest_spec(spec, source) | {"parents": parents}
    nearest: list[str] | None = None
    for row in store.ls(spec.name):  # oldest first: of equally near ones the newest stays
        if not row["problem"]:
            differences = changes(row.get("spec", {}) | {"parents": row.get("parents", {})}, new)
            nearest = differences if nearest is None or len(differences) <= len(nearest) else nearest
    return nearest


def _why(spec: StageSpec, known: Parents, source: Mapping[str, str], store: ArtifactStore, key: str) -> str:
    draft = store.draft_path(spec.name, key)
    if (step := last_step(draft)) is not None:
        return f"interrupted at step {step}"
    if was_begun(draft):
        return "interrupted"
    if (reason := store.quarantined(spec.name, key)) is not None:
        return f"the finished one was damaged: {reason}"
    nearest = _nearest(spec, known, source, store)
    return "never built" if nearest is None else one_line(nearest) or "its artifact was removed"


def run_stage(
    spec: StageSpec,
    parents: Parents,
    store: ArtifactStore,
    launch: Callable[[StageSpec, Parents, Claim, Emit], Mapping[str, Any]],
    say: Say,
    emit: Emit | None = None,
    *,
    ignore_code: bool = False,
) -> StageArtifact:
    """Return this stage's artifact, building it unless an earlier run left one for the same key.

    Args:
        launch: runs the stage function in ``claim.draft`` and returns its metrics.
        say: takes one line, without the stage's name: whether and from when it is reused, where it resumes, or why it
            is built; whom it waits for.
        emit: takes the events of the running stage; by default only what it says is passed on, to ``say``.
        ignore_code: reuse an artifact that differs in nothing but source files, and say so.

    Raises: whatever the launcher raises. The draft then stays, and the next run goes on from its last checkpoint.
    """
    if parents.keys() != spec.inputs.keys():
        raise ValueError(f"stage {spec.name} takes the inputs {sorted(spec.inputs)}, got {sorted(parents)}")
    source = source_files(targets(spec))
    key = stage_key(spec, parents, digest_of(source))
    with store.claim(spec.name, key, on_wait=say) as claim:  # one builder at a time, across processes
        if (found := claim.existing()) is not None:
            say(_reused(store.manifest(spec.name, key)))
            return found
        if ignore_code and (other := same_but_for_code(spec, parents, source, store)) is not None:
            artifact, edited = other
            say(despite_code(edited), level="warning", code_ignored=edited)
            return artifact
        say(_building(claim, _why(spec, parents, source, store, key)))
        started = time.monotonic()
        try:
            metrics = launch(spec, parents, claim, emit or _only_what_it_says(say))
        except BaseException as error:
            _report_failure(error, claim, say)
            raise
        wall_s = time.monotonic() - started - claim.waited_s
        return claim.commit(metrics=metrics, parents=parents, spec=_manifest_spec(spec, source), wall_s=wall_s)


def _manifest_spec(spec: StageSpec, source: Mapping[str, str]) -> dict[str, Any]:
    return {
        "target": spec.target,
        "settings": key_settings(spec.settings, spec.target),
        "seed": spec.seed,
        "source": dict(source),
    }


def _parent(artifact: StageArtifact) -> dict[str, str]:
    return {"stage": artifact.stage, "key": artifact.key, "digest": artifact.digest}


def _reused(manifest: Mapping[str, Any]) -> str:
    built = datetime.fromisoformat(manifest["created"]).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"reused, built {built}" + (f" by run {manifest['run']}" if manifest.get("run") else "")


def _building(claim: Claim, why: str) -> str:
    if claim.set_aside:
        return f"rebuilding, the artifact was damaged: {claim.set_aside}"
    if claim.step is not None:
        return f"resuming at step {claim.step}"
    if claim.begun:
        return "resuming what was begun"
    return f"building: {why}"


def _report_failure(error: BaseException, claim: Claim, say: Say) -> None:
    if claim.step is not None:
        say(f"stopped; step {claim.step} is kept, the same command goes on there")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        path = claim.draft
        held = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        error.add_note(
            f"while writing into {path}, which holds {held:,} bytes; {shutil.disk_usage(path).free:,} are free"
        )


def _only_what_it_says(say: Say) -> Emit:
    return lambda event: say(event["text"]) if event.get("event") == "say" else None
