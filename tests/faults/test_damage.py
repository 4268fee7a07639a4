"""Artifacts, checkpoints, samples and drafts damaged in every way: named, set aside, and rebuilt to the same."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import Claim
from tests.faults.plant import SAMPLING, STAGES, TRAINING, Plant, Stage, in_child

pytestmark = pytest.mark.timeout(600)
Damage = Callable[[Path], None]


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)


def lose(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def foreign(file: Path) -> None:
    """Something of somebody else's lies beside it."""
    file.with_name("notes.txt").write_text("not of this stage")


DAMAGES: tuple[Damage, ...] = (truncate, flip, lose, empty, foreign)


def cases(few: tuple[str, ...], every: tuple[str, ...]) -> list[Any]:
    return [*few, *(pytest.param(name, marks=pytest.mark.faults) for name in every if name not in few)]


def files_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size > 1)


@pytest.mark.parametrize("name", cases(("curate",), STAGES))
def test_a_damaged_artifact_is_named_and_rebuilt(plant: Plant, tmp_path: Path, tally: Counter[str], name: str) -> None:
    stage, draw = plant[name], random.Random(name)
    for damage in DAMAGES:
        root = tmp_path / damage.__name__
        folder = root / name / stage.reference.key
        shutil.copytree(stage.artifact.path, folder)
        file = draw.choice([file for file in files_of(folder) if "logs" not in file.parts])
        damage(file)
        looked_for = file if damage is not foreign else file.with_name("notes.txt")
        found = stage.ends_the_same(root)
        assert looked_for.name in found.said[0]
        assert "damaged" in found.said[0]
        assert not found.cached
        tally[f"damage to an artifact: {damage.__name__}"] += 1


def before_publishing(stage: Stage, root: Path) -> Path:
    """The draft of a stage that was killed when it was done but for the publishing: its checkpoints are all there."""

    def body() -> None:
        Claim.commit = lambda claim, **what: os.kill(os.getpid(), signal.SIGKILL)
        stage.build(root)

    assert in_child(body, root / "note.json").killed
    return root / stage.name / f"{stage.reference.key}.partial"


@pytest.fixture(scope="module")
def begun(plant: Plant, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Root of a store with such a draft, made once a stage."""
    made: dict[str, Path] = {}

    def root(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("begun") / name
            before_publishing(plant[name], made[name])
        return made[name]

    return root


class Bench:
    """Copies of a begun draft, each to be damaged in its own way."""

    def __init__(self, stage: Stage, begun: Path, root: Path, tally: Counter[str]) -> None:
        self.stage, self.begun, self.root, self.tally = stage, begun, root, tally

    def __call__(self, what: str, damage: Callable[[Path], None], *says: str) -> None:
        """Damage the draft, go on, and look for what was to be said; the result must be as without."""
        root = self.root / re.sub(r"\W+", "-", what)
        shutil.copytree(self.begun, root)
        damage(root / self.stage.name / f"{self.stage.reference.key}.partial")
        found = self.stage.ends_the_same(root)
        said = "\n".join(found.said)
        assert all(re.search(text, said) for text in says), f"{what}: {said}"
        self.tally[f"damage to a {what}"] += 1


@pytest.mark.parametrize("name", cases(("base",), TRAINING))
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    plant: Plant, begun: Callable[[str], Path], tmp_path: Path, tally: Counter[str], name: str
) -> None:
    bench = Bench(plant[name], begun(name), tmp_path, tally)
    draw = random.Random(name)

    def steps(draft: Path) -> list[Path]:
        return sorted((draft / "checkpoints").glob("step-*"))

    last, kept = steps(begun(name) / name / f"{plant[name].reference.key}.partial")[-1].name, "resuming at step"
    for damage in DAMAGES:
        file = draw.choice(["model.safetensors", "learner.safetensors", "state.json", "manifest.json"])
        told = rf"checkpoint {last} is damaged \(.*set aside as damaged-{last}"
        bench(
            f"checkpoint: {damage.__name__}",
            lambda draft, damage=damage, file=file: damage(steps(draft)[-1] / file),
            kept,
            told,
        )

    def all_of_them(draft: Path) -> None:
        for step in steps(draft):
            truncate(step / "model.safetensors")

    def under_another_name(draft: Path) -> None:
        shutil.copytree(steps(draft)[-1], draft / "checkpoints" / "step-00009999")

    bench("checkpoint: every one", all_of_them, r"(checkpoint step-\d+ is damaged(.|\n)*){2}")
    told = r"step-00009999 is damaged \(.*belongs to step \d+ of"
    bench("checkpoint: under another step's name", under_another_name, told)


@pytest.mark.parametrize("name", cases(("base",), TRAINING))
def test_what_lies_beside_the_checkpoints_is_brought_back_to_them(
    plant: Plant, begun: Callable[[str], Path], tmp_path: Path, tally: Counter[str], name: str
) -> None:
    bench = Bench(plant[name], begun(name), tmp_path, tally)

    def metrics(draft: Path) -> Path:
        return draft / "logs" / "metrics.jsonl"

    def more_lines(draft: Path) -> None:
        with metrics(draft).open("a") as file:
            file.write('{"step": 9}\n{"st')

    bench("log of metrics: lines after the checkpoint", more_lines)
    bench("log of metrics: cut", lambda draft: truncate(metrics(draft)), r"logs/metrics.jsonl: not the content")
    bench("log of metrics: lost", lambda draft: metrics(draft).unlink(), r"logs/metrics.jsonl: not the content")
    bench("draft: a foreign file", lambda draft: (draft / "notes.txt").write_text("x"))
    bench("draft: a foreign link", lambda draft: (draft / "notes").symlink_to("/etc"))
    bench("draft: half a model", lambda draft: truncate(draft / "model" / "model.safetensors"))
    if name.startswith("rl"):
        first = "rollouts/step-000001.parquet"
        for damage in (truncate, flip, lose, empty):
            bench(
                f"draft: rollouts, {damage.__name__}",
                lambda draft, damage=damage: damage(draft / first),
                rf"(checkpoint step-\d+ is damaged \(.*{first}.*\n?){{2}}",
            )


@pytest.mark.parametrize("name", cases(("eval_base",), SAMPLING))
def test_damaged_samples_are_named_and_drawn_again_and_the_others_kept(
    plant: Plant, begun: Callable[[str], Path], tmp_path: Path, tally: Counter[str], name: str
) -> None:
    bench = Bench(plant[name], begun(name), tmp_path, tally)

    def chunks(draft: Path) -> list[Path]:
        return sorted((draft / "checkpoints" / "drawn").rglob("*.json"))

    kept = r"\d+ of \d+ prompts had been sampled before"
    told = r"samples \d+ to \d+ are damaged \(.*{}\) and are drawn again"
    for damage in DAMAGES:
        says = [kept] if damage in (lose, foreign) else [kept, told.format("sha256 at its head")]
        what = f"chunk of samples: {damage.__name__}"
        bench(what, lambda draft, damage=damage: damage(chunks(draft)[1]), *says)
    another = told.format("samples of other tasks")
    bench("chunk of samples: another's", lambda draft: shutil.copy(chunks(draft)[0], chunks(draft)[1]), another)
