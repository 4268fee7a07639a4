"""Step checkpoints: written once, atomically; verified when read; the last two are kept.

<draft>/checkpoints/step-00000040/
    <part>.safetensors    one per entry of ``tensors`` ("model", "learner")
    state.json            what else the loop needs, plain JSON
    manifest.json         sizes and sha256 of the above and of what the draft held besides, written last

A checkpoint is the whole state at one step: going on from it also brings the draft back to that step. Files and metrics
that a crashed run wrote later are taken away, and a checkpoint whose files in the draft were damaged is passed over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from components.artifacts import Damaged, check_draft, commit_directory, load_directory, note_draft, restore_draft
from components.artifacts.directory import remove_tree
from components.artifacts.disk import naming_errors
from components.runtime import Out

# Names of tensors that are views of the same memory (tied weights): stored once, found again under every name.
ALIASES = "aliases"


@dataclass(frozen=True)
class Checkpoint:
    """What `save_checkpoint` was given, tensors on the CPU."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_checkpoint(
    out: Out, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], *, keep: int = 2
) -> None:
    """Write the checkpoint of ``step`` finished steps and drop all but the last ``keep``. Every rank calls it.

    The main rank writes; the others return once it has. A crash at any moment leaves either the whole checkpoint or
    none, and the ones before it. What the stage has written to ``out.path`` so far belongs to the checkpoint.

    Args:
        tensors: part → name → tensor; equal on every rank.
        state: JSON-able.

    Raises:
        TypeError, ValueError: ``state`` holds something that JSON does not, or a number that is not finite.
        OSError: the disk is full or not writable; names the path; earlier checkpoints are intact.
    """
    if out.peers.is_main:
        text = json.dumps(dict(state), allow_nan=False)
        final = _path(out, step)
        draft = final.with_name(f".draft-{final.name}")
        for leftover in (*out.checkpoints.glob(".draft-*"), final):  # of a crash; of a step that is done again
            shutil.rmtree(leftover, ignore_errors=True)
        noted = note_draft(out.path)
        with naming_errors("write", draft):
            draft.mkdir(parents=True)
            for part, named in tensors.items():
                _write(draft / f"{part}.safetensors", named)
            (draft / "state.json").write_text(text, encoding="utf-8")
        commit_directory(draft, final, {"step": step, "of": _owner(out), "draft": noted})
        for old in _found(out)[:-keep]:
            remove_tree(old)
    out.peers.barrier()


def load_latest(out: Out) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None. Every rank calls it and gets the same one.

    Call it before the stage writes anything: what a crashed run left in ``out.path`` after that checkpoint goes. A
    damaged one is named on the console, set aside under ``damaged-…`` and passed over for the one before.
    """
    chosen = _choose(out) if out.peers.is_main else -1
    chosen = out.peers.gather(chosen)[0]
    if chosen < 0:
        return None
    path = _path(out, chosen)
    parts = {file.stem: _read(file) for file in sorted(path.glob("*.safetensors"))}
    return Checkpoint(chosen, parts, json.loads((path / "state.json").read_text(encoding="utf-8")))


def _choose(out: Out) -> int:
    """Step of the newest whole checkpoint, the draft brought back to it; -1 and an empty draft without one."""
    if not out.checkpoints.is_dir():
        return -1  # nothing was begun here
    chosen, noted = -1, None
    for path in reversed(_found(out)):
        try:
            manifest = load_directory(path, full=True)
            if (manifest.get("of"), path) != (_owner(out), _path(out, manifest.get("step", -1))):
                raise Damaged(path, f"belongs to step {manifest.get('step')} of {manifest.get('of')}")
            check_draft(out.path, manifest["draft"])
            chosen, noted = manifest["step"], manifest["draft"]
            break
        except (Damaged, OSError) as error:
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            out.say(f"checkpoint {path.name} is damaged ({error}); set aside as {aside.name}, using the one before it")
    restore_draft(out.path, noted)
    out.replay()
    return chosen


def _owner(out: Out) -> str:
    """Whose checkpoint it is: one that was copied here from another stage, key or seed is not gone on from."""
    return f"{out.name}/{out.path.name}, seed {out.seed}"


def _path(out: Out, step: int) -> Path:
    return out.checkpoints / f"step-{step:08d}"


def _found(out: Out) -> list[Path]:
    """Committed checkpoints, oldest first."""
    return sorted(out.checkpoints.glob("step-" + "[0-9]" * 8))


def _write(file: Path, named: Mapping[str, Tensor]) -> None:
    kept: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in named.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and place in first:
            aliases[name] = first[place]
        else:
            first[place] = name
            kept[name] = tensor.detach().cpu().contiguous().clone()
    save_file(kept, file, metadata={ALIASES: json.dumps(aliases)})


def _read(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as stored:
        named = {name: torch.clone(stored.get_tensor(name)) for name in stored.keys()}  # noqa: SIM118
        aliases = json.loads((stored.metadata() or {}).get(ALIASES, "{}"))
    return named | {name: named[kept] for name, kept in aliases.items()}
