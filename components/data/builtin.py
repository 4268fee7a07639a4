"""The embedded data set: four reasoning families with levels, harmful and harmless requests, simple questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from components.data import general
from components.data.corpus import Corpus
from components.data.pretraining import pretraining_lines
from components.data.reasoning import FAMILIES, LEVELS, Problem, distinct, endless
from components.data.traces import general_response, reasoning_example, reasoning_task, wrong_class_response
from components.rng import stream
from components.types import Example, Task


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """Tasks, traces and text written by programs; dev and test are the same for every seed.

    Attributes:
        scale: multiplies every size below (at least 1 stays of each); 0.02 is enough for a smoke run.
        pretrain_lines: about 24 tokens each, 2.6 million together.
        chat_share: share of the worked problems in them that is in the chat format, for R1-Zero.
        cold_start: reasoning traces; ``cold_start_families`` weighs the families, ``cold_start_levels`` the levels.
        hasty: share of the traces with a right answer but no steps.
        spanish: share of the careful traces with Spanish connectors.
        safety_examples, helpful_examples: for the second SFT; ``label_noise`` of the safety ones, in both classes
            alike, behave as the other class demands.
        train_per_cell, fresh_per_cell, profile_per_cell: distinct prompts per family and level; a small cell gives what
            it has, profile first, the rest shared between train and fresh in proportion.
        general_per_family: RL prompts of each general family.
        evaluated_levels: dev and test hold levels below this; the levels above are there to be trained on only.
        dev_per_cell, test_per_cell: per family and level; ``dev`` also of each general cell.
        test_safety: of each class for each kind held out (combination, template, pair).
        test_helpful: simple questions in test.
    """

    scale: float = 1.0
    pretrain_lines: int = 108_000
    chat_share: float = 0.0
    cold_start: int = 8_000
    cold_start_families: Mapping[str, float] = field(
        default_factory=lambda: {"chain": 1.0, "gcd": 1.0, "product": 0.8, "boxes": 1.2}
    )
    cold_start_levels: tuple[int, ...] = (0, 0, 1, 1, 2, 2, 3)
    hasty: float = 0.4
    spanish: float = 0.3
    safety_examples: int = 3_200
    helpful_examples: int = 900
    label_noise: float = 0.2
    train_per_cell: int = 400
    fresh_per_cell: int = 300
    profile_per_cell: int = 8
    general_per_family: int = 400
    evaluated_levels: int = 4
    dev_per_cell: int = 16
    test_per_cell: int = 20
    test_safety: int = 40
    test_helpful: int = 80

    def __post_init__(self) -> None:
        if problems := builtin_check(vars(self)):
            raise ValueError("; ".join(problems))

    def load(self, seed: int) -> Corpus:
        test, dev, ban = self._evaluation()
        tasks = {"test": test, "dev": dev, "profile": [], "fresh": [], "train": []}
        for family in FAMILIES:
            for level in range(LEVELS):
                for split, found in self._cell(seed, family, level, ban).items():
                    tasks[split] += found
        tasks["train"] += self._general_tasks(seed, ban)
        rng = stream(seed, "data", "pretrain")
        lines = pretraining_lines(self._size(self.pretrain_lines), rng, ban, self.chat_share)
        return Corpus(tasks, list(lines), self._cold_start(seed, ban), self._general_examples(seed, ban))

    def _size(self, n: int) -> int:
        return max(1, round(n * self.scale)) if n else 0

    def _evaluation(self) -> tuple[list[Task], list[Task], frozenset[str]]:
        """Test tasks, dev tasks, and every prompt that no training data may contain."""
        test: list[Task] = []
        dev: list[Task] = []
        ban: set[str] = set()
        for family in FAMILIES:
            for level in range(self.evaluated_levels):
                for split, n, into in (("test", self.test_per_cell, test), ("dev", self.dev_per_cell, dev)):
                    problems = self._held_out_problems(split, family, level, self._size(n), ban)
                    into += map(reasoning_task, problems)
        safety, helpful = self._size(self.test_safety), self._size(self.test_helpful)
        each = self._size(self.dev_per_cell)
        for cell in general.held_out_requests().values():
            test += cell[:safety]
            dev += cell[safety : safety + each]
        questions = general.helpful_tasks()
        test += questions[:helpful]
        dev += questions[helpful : helpful + each]
        return test, dev, frozenset(ban | {task.prompt for task in chain(test, dev)})

    def _held_out_problems(self, split: str, family: str, level: int, n: int, ban: set[str]) -> list[Problem]:
        """Draw at an address without the seed and add the prompts and their twins to ``ban``."""
        rng, found = stream("held-out", split, family, level), []
        while len(found) < n:
            problem = next(endless(rng, family, level, ban))
            found.append(problem)
            ban.update((problem.prompt, *problem.twins))
        return found

    def _cell(self, seed: int, family: str, level: int, ban: frozenset[str]) -> dict[str, list[Task]]:
        profile, train, fresh = map(self._size, (self.profile_per_cell, self.train_per_cell, self.fresh_per_cell))
        rng = stream(seed, "data", "tasks", family, level)
        found = [reasoning_task(p) for p in distinct(rng, family, level, profile + train + fresh, ban)]
        first, rest = found[:profile], found[profile:]
        cut = round(len(rest) * train / (train + fresh))
        return {"profile": first, "train": rest[:cut], "fresh": rest[cut:]}

    def _general_tasks(self, seed: int, ban: frozenset[str]) -> list[Task]:
        n, found = self._size(self.general_per_family), {}
        for family in ("unsafe", "benign"):
            rng, own = stream(seed, "data", "tasks", family), {}
            for _ in range(20 * n):  # a class has some hundred requests; enough tries to find nearly all of them
                task = general.training_request(rng, family)
                own[task.prompt] = task
                if len(own) == n:
                    break
            found |= own
        questions = [task for task in general.helpful_tasks() if task.prompt not in ban]
        stream(seed, "data", "tasks", "helpful").shuffle(questions)
        return [*found.values(), *questions[:n]]

    def _cold_start(self, seed: int, ban: frozenset[str]) -> list[Example]:
        rng = stream(seed, "data", "cold_start")
        families, weights = list(self.cold_start_families), list(self.cold_start_families.values())
        examples = []
        for _ in range(self._size(self.cold_start)):
            family, level = rng.choices(families, weights)[0], rng.choice(self.cold_start_levels)
            careful, language = rng.random() >= self.hasty, "es" if rng.random() < self.spanish else "en"
            problem = next(endless(rng, family, level, ban))
            examples.append(reasoning_example(problem, careful=careful, language=language))
        return examples

    def _general_examples(self, seed: int, ban: frozenset[str]) -> list[Example]:
        rng = stream(seed, "data", "general")
        examples = []
        for _ in range(self._size(self.safety_examples)):
            task = general.training_request(rng, rng.choice(("unsafe", "benign")))
            noisy = rng.random() < self.label_noise
            response = wrong_class_response(task) if noisy else general_response(task, rng)
            examples.append(Example(task.id, task.messages, response, f"{task.family}-noise" if noisy else task.family))
        questions = [task for task in general.helpful_tasks() if task.prompt not in ban]
        for _ in range(self._size(self.helpful_examples)):
            task = rng.choice(questions)
            examples.append(Example(task.id, task.messages, general_response(task, rng), task.family))
        return examples


def builtin_check(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with sizes and shares; preflight asks before anything runs."""
    problems = []
    for name in ("hasty", "spanish", "label_noise", "chat_share"):
        if not 0 <= settings[name] <= 1:
            problems.append(f"{name}: is a share between 0 and 1, got {settings[name]}. Fix: write 0.2, for example")
    if not settings["scale"] > 0:
        problems.append(f"scale: must be positive, got {settings['scale']}. Fix: write 1.0, or 0.02 for a smoke run")
    for name, size in settings.items():
        if isinstance(size, int) and name != "evaluated_levels" and size < 0:
            problems.append(f"{name}: must not be negative, got {size}. Fix: write 0 for none")
    if not 1 <= settings["evaluated_levels"] <= LEVELS:
        problems.append(
            f"evaluated_levels: must lie in 1 … {LEVELS}, got {settings['evaluated_levels']}. Fix: 4 is usual"
        )
    families = settings.get("cold_start_families") or {}
    if unknown := sorted(set(families) - set(FAMILIES)):
        problems.append(
            f"cold_start_families: there is no {', '.join(unknown)}. Fix: name some of {', '.join(FAMILIES)}"
        )
    if any(weight < 0 for weight in families.values()) or (families and not any(families.values())):
        problems.append("cold_start_families: weights must not be negative, nor all 0. Fix: write 1.0 for equal shares")
    return problems
