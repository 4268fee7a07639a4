"""``r1flow export STAGE --to DIR``: a finished model as a directory that any other program loads, with a model card."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore, Damaged
from components.artifacts.disk import naming_errors, sync_file
from flows.card import Entry, model_card
from flows.errors import BadInput, Problem
from flows.runs import find_run, list_runs

EPILOG = """\
STAGE is a stage of your latest run that has it (--run RUN: of that run), or stage/KEY as `r1flow cache ls` lists them.

DIR becomes a plain Hugging Face directory: config, safetensors with LoRA merged, tokenizer with its chat template, and
README.md, the model card: data, settings, evaluation with intervals, what it was made from. It appears all at once.

  r1flow export rl_2 --to my_model
  lm_eval --model hf --model_args pretrained=my_model --apply_chat_template --tasks gsm8k
  vllm serve my_model                                          (not tested here)
  python llama.cpp/convert_hf_to_gguf.py my_model              GGUF, with llama.cpp's own converter (not tested here)"""


def define(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("stage", metavar="STAGE", help="a stage with a model, or stage/KEY")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="directory to write; must not hold anything"
    )
    parser.add_argument("--run", metavar="RUN", help="id of a run, or a part of it; default: the latest with the stage")
    parser.add_argument("--force", action="store_true", help="replace what DIR holds")


def export(options: argparse.Namespace, console: Any) -> int:
    """Write the directory.

    Raises:
        BadInput: no such stage or model, a damaged one, a directory that holds something or can't be written.
    """
    store = ArtifactStore(options.artifacts / "cache")
    stage, key = _find(options, store)
    target = options.to.expanduser().absolute()
    if problem := _not_free(target, force=options.force):
        raise BadInput(problem)
    try:
        artifact = store.load(stage, key, full=True)
        chain = lineage(store, stage, key)
    except Damaged as error:
        fix = "build it again: r1flow run"
        raise BadInput(Problem(f"export {stage}/{key}", "", f"is damaged: {error.problem}", fix=fix)) from error
    model = artifact.path / "model" if artifact is not None else None
    if model is None or not _is_language_model(model.parent):
        known = ", ".join(_with_models(options.artifacts)) or "none yet"
        problem = "holds no language model"
        raise BadInput(Problem("export", "", problem, got=f"{stage}/{key}", fix=f"name one of: {known}"))
    card = model_card(chain, _evaluations(store, chain), name=target.name)
    try:
        with naming_errors("write", target), _replacing(target) as draft:
            for file in sorted(model.iterdir()):
                shutil.copyfile(file, draft / file.name)
            (draft / "README.md").write_text(card, encoding="utf-8")
    except OSError as error:
        raise BadInput(Problem("export", "--to", str(error), fix="choose a directory you may write")) from error
    console.print(
        f"{stage}/{key} in {target}: model, tokenizer, README.md", markup=False, highlight=False, soft_wrap=True
    )
    return 0


def lineage(store: ArtifactStore, stage: str, key: str) -> list[Entry]:
    """The artifact and all that it was made from, parents first. Raises: Damaged."""
    found: dict[tuple[str, str], Entry] = {}

    def add(where: tuple[str, str]) -> None:
        if where not in found:
            manifest = store.manifest(*where)
            for parent in manifest["parents"].values():
                add((parent["stage"], parent["key"]))
            found[where] = Entry(store.path(*where), manifest)

    add((stage, key))
    return list(found.values())


def _evaluations(store: ArtifactStore, chain: list[Entry]) -> list[Entry]:
    """Evaluations of the models in the chain, in its order; of several of one model the last."""
    by_model: dict[tuple[str, str], Entry] = {}
    for row in store.ls():
        parent = row.get("parents", {}).get("model")
        if parent and not row["problem"] and (row["path"] / "summary.json").is_file():
            by_model[parent["stage"], parent["key"]] = Entry(row["path"], row)
    return [found for entry in chain if (found := by_model.get((entry.stage, entry.key))) is not None]


def _find(options: argparse.Namespace, store: ArtifactStore) -> tuple[str, str]:
    name, slash, beginning = options.stage.partition("/")
    if slash:
        keys = [row["key"] for row in store.ls() if row["stage"] == name and row["key"].startswith(beginning)]
        if len(keys) == 1 and beginning:
            return name, keys[0]
        problem = f"fits {len(keys)} artifacts" if keys else "no such artifact"
        raise BadInput(Problem("export", "", problem, got=options.stage, fix="r1flow cache ls lists them"))
    runs = [find_run(options.artifacts, options.run)] if options.run else list_runs(options.artifacts)[::-1]
    for run in runs:
        entry = run["stages"].get(name, {})
        if entry.get("path") and Path(entry["path"]).is_dir():
            return name, Path(entry["path"]).name
    where = f"run {options.run}" if options.run else f"any run in {options.artifacts}"
    known = ", ".join(_with_models(options.artifacts)) or "none yet; finish a run first: r1flow run"
    raise BadInput(
        Problem("export", "", f"{where} has no finished stage of that name", got=name, fix=f"name one of: {known}")
    )


def _with_models(artifacts: Path) -> list[str]:
    stages = [(name, entry.get("path")) for run in list_runs(artifacts) for name, entry in run["stages"].items()]
    return list(dict.fromkeys(name for name, path in stages if path and _is_language_model(Path(path))))


def _is_language_model(artifact: Path) -> bool:
    return (artifact / "model" / "config.json").is_file() and not (artifact / "head.safetensors").is_file()


def _not_free(target: Path, *, force: bool) -> Problem | None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        return Problem("export", "--to", "is not a directory", got=str(target), fix="choose another one")
    if target.is_dir() and any(target.iterdir()) and not force:
        held = sorted(entry.name for entry in target.iterdir())
        problem = f"holds something already ({', '.join(held[:3])}{', …' if len(held) > 3 else ''})"
        return Problem("export", "--to", problem, got=str(target), fix="choose an empty one, or --force to replace it")
    return None


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A draft beside ``target`` that takes its place in one step once the block has ended well; else it is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent) as place:
        draft, before = Path(place) / "new", Path(place) / "before"
        draft.mkdir()
        yield draft
        for file in draft.iterdir():
            sync_file(file)
        if target.is_dir():
            os.rename(target, before)
        try:
            os.rename(draft, target)
        except OSError:
            if before.is_dir():
                os.rename(before, target)
            raise
