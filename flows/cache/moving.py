"""``r1flow cache export`` and ``import``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore, Damaged
from components.artifacts.archive import BadArchive, compression_of, write_archive
from components.artifacts.transfer import receive
from flows.cache.pins import Target, artifacts_of, make_pins, resolve
from flows.errors import BadInput, Problem
from flows.runs import adopt, find_run, held
from flows.status import size_text


def export(options: argparse.Namespace, console: Any) -> int:
    """Write one archive of a run's artifacts, or of one artifact."""
    name = options.names[0]
    target = resolve(options.artifacts, name)
    output = options.output or Path(f"{target.run or f'{target.stage}-{target.key[:10]}'}.tar")
    try:
        compression_of(output)
        if output.exists():
            raise ValueError(f"{output} exists")
    except ValueError as error:
        raise BadInput(Problem("cache export", "-o", str(error), fix="choose another name")) from error
    if target.run and options.alone:
        raise BadInput(Problem("cache export", "--alone", "is for one artifact, not for a run", fix="leave it out"))
    with held(options.artifacts, exclusive=False):
        places = artifacts_of(options.artifacts, name, alone=options.alone)
        store = ArtifactStore(options.artifacts / "cache")
        record = find_run(options.artifacts, target.run) if target.run else None
        try:
            size = write_archive(output, [store.path(*where) for where in places], record)
        except Damaged as error:
            raise BadInput(
                Problem(str(error.path), "", error.problem, fix="r1flow cache verify, then r1flow run builds it again")
            ) from error
    text = f"{len(places)} artifacts in {output}, {size_text(size)}. There: r1flow cache import {output.name}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def take_in(options: argparse.Namespace, console: Any) -> int:
    """Verify an archive and take in what is not here yet."""
    file = Path(options.names[0])
    if not file.is_file():
        raise BadInput(
            Problem("cache import", "", f"no such file from {Path.cwd()}", got=str(file), fix="give its path")
        )
    with held(options.artifacts, exclusive=False):
        try:
            got = receive(file, ArtifactStore(options.artifacts / "cache"), lambda text: print(text, file=sys.stderr))
        except BadArchive as error:
            raise BadInput(Problem("cache import", "", str(error).rstrip("."), fix="export it again")) from error
        run = adopt(options.artifacts, got.run, file.name) if got.run else None
        if run is None and got.imported:
            make_pins(options.artifacts, _last(options.artifacts, got.imported), f"from {file.name}")
    for stage, key in got.imported:
        console.print(f"✓ {stage}/{key}", markup=False, highlight=False)
    text = f"{len(got.imported)} artifacts imported, {len(got.present)} were here already"
    if got.imported:
        text += f"; run {run}" if run else "; no run of this directory used them yet, so gc would take them: pinned"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def _last(artifacts: Path, imported: list[tuple[str, str]]) -> list[Target]:
    """Those that none of the others was built from: a pin keeps parents as well."""
    store = ArtifactStore(artifacts / "cache")
    manifests = [store.manifest(*where) for where in imported]
    parents = {(parent["stage"], parent["key"]) for manifest in manifests for parent in manifest["parents"].values()}
    return [Target(stage=stage, key=key) for stage, key in imported if (stage, key) not in parents]
