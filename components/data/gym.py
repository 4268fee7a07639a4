"""Any generator of reasoning-gym (arXiv:2505.24760) with its difficulty parameters and its own scorer; an extra."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from components.data.corpus import EVALUATION_SPLITS, SPLITS, Corpus, DataError
from components.data.general import task_id
from components.data.records import nearest
from components.rng import derive
from components.types import Message, Task


@dataclass(frozen=True, kw_only=True)
class ReasoningGym:
    """Tasks of reasoning-gym generators; dev and test are the same for every seed.

    ``Task.meta`` holds what its scorer needs: ``dataset``, ``config`` (difficulty parameters), ``entry`` (the item as
    JSON) and ``tuples`` (True if the scorer expects tuples where JSON has lists).

    Attributes:
        datasets: for each generator the difficulty parameters of its levels, easiest first; ``[{}]`` is one level with
            the generator's defaults.
        train_per_cell, fresh_per_cell, profile_per_cell, dev_per_cell, test_per_cell: distinct prompts per generator
            and level; a small cell gives what it has, test first.
    """

    datasets: Mapping[str, Sequence[Mapping[str, Any]]]
    train_per_cell: int = 200
    fresh_per_cell: int = 100
    profile_per_cell: int = 8
    dev_per_cell: int = 16
    test_per_cell: int = 20

    def check(self) -> None:
        """Raises: DataError if the package is missing, or a name or parameter doesn't exist."""
        for name, levels in self.datasets.items():
            for level, config in enumerate(levels):
                self._dataset(name, level, config, seed=0, size=1)

    def contents(self) -> dict[str, int]:
        """What this source never has: traces, other examples, pairs, plain text."""
        return {"cold_start.jsonl": 0, "general.jsonl": 0, "preferences.jsonl": 0, "pretrain.txt": 0}

    def load(self, seed: int) -> Corpus:
        tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        dropped = {"gold_fails_its_own_test": 0}
        for name, levels in self.datasets.items():
            taken: set[str] = set()  # prompts of this generator, whatever the level
            for split in SPLITS:
                n = getattr(self, f"{split}_per_cell")
                address = ("held-out",) if split in EVALUATION_SPLITS else (seed, "data")
                for level, config in enumerate(levels):
                    dataset = self._dataset(name, level, config, seed=derive(*address, split, name, level), size=20 * n)
                    found = _distinct(name, level, config, dataset, taken, dropped)
                    tasks[split] += [task for task, _ in zip(found, range(n), strict=False)]
        return Corpus(tasks, templated=True, dropped=dropped)

    def _dataset(self, name: str, level: int, config: Mapping[str, Any], *, seed: int, size: int) -> Any:
        try:
            from reasoning_gym.factory import DATASETS, create_dataset  # optional, and 2 s to import
        except ImportError as error:
            raise DataError("data=reasoning_gym needs a package. Fix: pip install 'r1flow[reasoning-gym]'") from error
        if name not in DATASETS:
            raise DataError(f"data.datasets: reasoning-gym has no {name!r}{nearest(name, DATASETS)}")
        known = {f.name for f in fields(DATASETS[name][1])} - {"seed", "size"}
        for key in config:
            if key not in known:
                raise DataError(f"data.datasets.{name}[{level}].{key}: no such parameter{nearest(key, sorted(known))}")
        try:
            return create_dataset(name, seed=seed % 2**31, size=max(size, 1), **config)
        except (AssertionError, ValueError, TypeError) as error:
            raise DataError(
                f"data.datasets.{name}[{level}]: refused ({error or 'see its documentation'}; got {dict(config)}). "
                f"Fix: parameters are {', '.join(sorted(known))}"
            ) from error


def _distinct(
    name: str, level: int, config: Mapping[str, Any], dataset: Any, taken: set[str], dropped: dict[str, int]
) -> Iterator[Task]:
    """Tasks with prompts not in ``taken`` yet, each added to it; items whose own answer is scored wrong are counted."""
    for i in range(dataset.size):
        entry = dataset[i]
        prompt, answer = entry["question"], entry["answer"]
        if prompt in taken:
            continue
        plain = json.loads(json.dumps(entry, default=str))
        tuples = answer is not None and dataset.score_answer(answer, plain) < 1
        if tuples and dataset.score_answer(answer, as_tuples(plain)) < 1:
            dropped["gold_fails_its_own_test"] += 1
            continue
        taken.add(prompt)
        meta = {"dataset": name, "config": dict(config), "entry": plain, "tuples": tuples}
        messages = (Message("user", prompt),)
        yield Task(task_id(name, level, prompt), messages, answer, "reasoning_gym", name, level, "reasoning", meta)


def as_tuples(value: Any) -> Any:
    """Nested lists as nested tuples; the keys of dictionaries stay."""
    if isinstance(value, list):
        return tuple(as_tuples(item) for item in value)
    return {key: as_tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def reasoning_gym_check(settings: Mapping[str, Any]) -> list[str]:
    """Whether the package is there; its generators are looked up when the data are made."""
    from importlib.util import find_spec  # here, so that this function needs nothing of its module

    if find_spec("reasoning_gym") is None:
        return ["needs the package reasoning-gym. Fix: pip install 'r1flow[reasoning-gym]'"]
    return []
