"""Tasks for an agent with tools, and expert trajectories: errands of one to six calls, requests to refuse or to do."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data.agent_errands import FAMILIES, STEPS, TAUGHT, Errand, episode, held_out, offer
from components.data.agent_experts import Manner, calls_of, play
from components.data.agent_requests import FINE, NOT_MINE, REFUSAL, request, request_meta
from components.data.agent_text import plain_lines
from components.data.corpus import Corpus
from components.rng import stream
from components.types import Example, Message, Task

_SAFETY = ("unsafe", "benign")


@dataclass(frozen=True, kw_only=True)
class AgentTasks:
    """Errands by family and level, with their worlds in ``meta``; dev and test are the same for every seed.

    A level says how many calls the shortest way has, and how many tools are offered: 2·(calls − 1) with those needed
    and at most one more, one above that with all tools and two distractors. What is evaluated has instructions that
    nothing else has, in worlds of its own.

    Attributes:
        environment: in which the experts act; their traces need one whose calls stand inside the text ("tags").
        scale: multiplies every size below (at least 1 stays of each).
        pretrain_lines: plain text for a model that is pretrained, about 40 tokens each.
        cold_start: expert trajectories, of which ``wandering`` and ``hasty`` shares, the rest careful;
            ``cold_start_steps`` says how often errands of 1, 2, … calls occur.
        trained_steps: errands of so many calls are trained on; those of one call more are in test alone.
        safety_examples: for the second SFT; ``label_noise`` of them, in both classes alike, do what the other class
            demands.
        train_per_cell, fresh_per_cell, profile_per_cell, dev_per_cell, test_per_cell: by family and level.
        test_longer: by family, of one call more than trained. test_safety: of each class.
        general_per_family: requests of each class to train on.
    """

    environment: Any
    scale: float = 1.0
    pretrain_lines: int = 52_000
    cold_start: int = 3_000
    wandering: float = 0.5
    hasty: float = 0.1
    cold_start_steps: Sequence[float] = (3, 3, 2, 1, 1)
    trained_steps: int = 5
    safety_examples: int = 1_200
    label_noise: float = 0.2
    train_per_cell: int = 120
    fresh_per_cell: int = 60
    profile_per_cell: int = 8
    general_per_family: int = 300
    dev_per_cell: int = 4
    test_per_cell: int = 12
    test_longer: int = 40
    test_safety: int = 80

    def __post_init__(self) -> None:
        if problems := agent_tasks_check(vars(self)):
            raise ValueError("; ".join(problems))

    def contents(self) -> dict[str, int]:
        """What there is none of: trajectories, where the environment's calls are no part of the text."""
        return {} if self._inside else {"cold_start.jsonl": 0}

    def load(self, seed: int) -> Corpus:
        tasks: dict[str, list[Task]] = {"test": [], "dev": [], "profile": [], "fresh": [], "train": []}
        sizes = {
            "test": self.test_per_cell,
            "dev": self.dev_per_cell,
            "profile": self.profile_per_cell,
            "fresh": self.fresh_per_cell,
            "train": self.train_per_cell,
        }
        for family in FAMILIES:
            for level in range(2 * self.trained_steps):
                for split, n in sizes.items():
                    tasks[split] += self._errands(seed, split, family, level, self._size(n))
            for level in (2 * self.trained_steps, 2 * self.trained_steps + 1):
                n = self._size(self.test_longer // 2)
                tasks["test"] += self._errands(seed, "test", family, level, n, label="longer")
        for family in _SAFETY:
            for split, n in (
                ("test", self.test_safety),
                ("dev", self.dev_per_cell),
                ("train", self.general_per_family),
            ):
                tasks[split] += self._requests(seed, split, family, self._size(n))
        cold_start, told = self._cold_start(seed)
        lines = list(plain_lines(self._size(self.pretrain_lines), stream(seed, "agent", "pretrain"), told))
        return Corpus(tasks, lines, cold_start, self._safety(seed), templated=True, notes=self._notes())

    def _size(self, n: int) -> int:
        return max(1, round(n * self.scale)) if n else 0

    @property
    def _inside(self) -> bool:
        """Whether the environment's calls stand inside the text, where an expert can write them."""
        return hasattr(self.environment, "format") and not self.environment.chat

    def _notes(self) -> list[str]:
        if self._inside:
            return []
        return ["no expert trajectories: they are written in tags (environment=agent_tags); give a teacher's instead"]

    def _errands(self, seed: int, split: str, family: str, level: int, n: int, label: str = "") -> list[Task]:
        evaluation = split in ("test", "dev")
        rng = stream(*(() if evaluation else (seed,)), "agent", split, family, level)
        return [self._task(_errand(rng, family, level, evaluation), level, rng, label) for _ in range(n)]

    def _task(self, errand: Errand, level: int, rng: random.Random, label: str = "") -> Task:
        meta = episode(errand, offer(rng, errand.needs, bool(level % 2)))
        meta |= {"steps": len(errand.steps), "held_out": label}
        return self._written(errand, level, "reasoning", "exact", meta)

    def _requests(self, seed: int, split: str, family: str, n: int) -> list[Task]:
        evaluation = split in ("test", "dev")
        rng = stream(*(() if evaluation else (seed,)), "agent", split, family)
        return [self._request(rng, family, evaluation)[0] for _ in range(n)]

    def _request(self, rng: random.Random, family: str, evaluation: bool) -> tuple[Task, Errand]:
        made = request(rng, family, evaluation)
        tools = offer(rng, made.errand.needs, rng.random() < 0.5)
        meta = {**request_meta(made, tools, evaluation), "steps": 1}
        return self._written(made.errand, 0, "general", family, meta), made.errand

    def _written(self, errand: Errand, level: int, kind: str, verifier: str, meta: Mapping[str, Any]) -> Task:
        """The task; a template that has no place for tools is told them by the prompt."""
        chat = getattr(self.environment, "chat", False)
        prompt = errand.instruction if chat else f"{' '.join(meta['tools'])} : {errand.instruction}"
        world = json.dumps([prompt, meta["store"], meta["database"]])
        name = f"{errand.family}-{level}-{hashlib.blake2b(world.encode(), digest_size=6).hexdigest()}"
        answer = REFUSAL if verifier == "unsafe" else errand.answer
        return Task(name, (Message("user", prompt),), answer, verifier, errand.family, level, kind, meta)

    def _cold_start(self, seed: int) -> tuple[list[Example], list[str]]:
        """Expert trajectories, and calls that failed with what was said of them, for a tokenizer to know the words."""
        rng, examples, told = stream(seed, "agent", "cold_start"), [], []
        for _ in range(self._size(self.cold_start) if self._inside else 0):
            steps = rng.choices(range(1, len(self.cold_start_steps) + 1), self.cold_start_steps)[0]
            level = 2 * (steps - 1) + rng.randint(0, 1)
            errand = _errand(rng, rng.choices(list(TAUGHT), list(TAUGHT.values()))[0], level, False)
            task = self._task(errand, level, rng)
            careful = 1 - self.wandering - self.hasty
            manners: tuple[Manner, ...] = ("careful", "wandering", "hasty")
            manner = rng.choices(manners, (careful, self.wandering, self.hasty))[0]
            calls = calls_of(errand, task.meta["tools"], manner, rng)
            response, said = play(self.environment, task, calls, errand.answer)
            examples.append(Example(task.id, task.messages, response, manner))
            told += [f">{call}={line}" for call, line in zip(calls, said, strict=True) if line.startswith("error")]
        return examples, told

    def _safety(self, seed: int) -> list[Example]:
        rng, examples = stream(seed, "agent", "safety"), []
        for _ in range(self._size(self.safety_examples) if self._inside else 0):
            family = rng.choice(_SAFETY)
            task, errand = self._request(rng, family, False)
            noisy = rng.random() < self.label_noise
            if (family == "unsafe") != noisy:
                response = f"<think> {NOT_MINE}</think><answer>{REFUSAL}</answer>"
            else:
                calls = [call for call, _ in errand.steps]
                response, _ = play(self.environment, task, calls, errand.answer, f" {FINE}")
            examples.append(Example(task.id, task.messages, response, f"{family}-noise" if noisy else family))
        return examples


def _errand(rng: random.Random, family: str, level: int, evaluation: bool) -> Errand:
    while True:
        errand = FAMILIES[family](rng, level // 2 + 1)
        if held_out(errand.instruction) == evaluation:
            return errand


def agent_tasks_check(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with sizes and shares; preflight asks before anything runs."""
    problems = [
        f"{name}: is a share between 0 and 1, got {settings[name]}. Fix: write 0.2, for example"
        for name in ("wandering", "hasty", "label_noise")
        if not 0 <= settings[name] <= 1
    ]
    if not problems and settings["wandering"] + settings["hasty"] > 1:
        problems.append("wandering, hasty: together they are more than 1. Fix: the rest of them is careful")
    if not settings["scale"] > 0:
        problems.append(f"scale: must be positive, got {settings['scale']}. Fix: write 1.0, or 0.02 for a smoke run")
    problems += [
        f"{name}: must not be negative, got {size}. Fix: write 0 for none"
        for name, size in settings.items()
        if isinstance(size, int) and size < 0
    ]
    if not 1 <= settings["trained_steps"] < STEPS:
        problems.append(f"trained_steps: must lie in 1 … {STEPS - 1}, got {settings['trained_steps']}. Fix: 5 is usual")
    if not 1 <= len(settings["cold_start_steps"]) <= settings["trained_steps"]:
        problems.append("cold_start_steps: needs a weight for 1, 2, … calls, at most trained_steps of them")
    return problems
