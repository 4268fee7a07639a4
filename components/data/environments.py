"""Tasks that an environment makes itself: the seeds of a game, or the rows of a data set that it brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components.data.corpus import EVALUATION_SPLITS, SPLITS, Corpus, DataError


@dataclass(frozen=True, kw_only=True)
class EnvironmentTasks:
    """Tasks of ``environment.tasks``; dev and test are the same for every seed.

    Attributes:
        environment: one that makes tasks (environment=gym, environment=verifiers).
        train, fresh, profile, dev, test: tasks of each split; where there are fewer, test and dev come first.
    """

    environment: Any
    train: int = 400
    fresh: int = 200
    profile: int = 32
    dev: int = 32
    test: int = 64

    def contents(self) -> dict[str, int]:
        """What this source never has: traces, other examples, pairs, plain text."""
        return {"cold_start.jsonl": 0, "general.jsonl": 0, "preferences.jsonl": 0, "pretrain.txt": 0}

    def load(self, seed: int) -> Corpus:
        """Raises DataError: the environment makes no tasks."""
        if not hasattr(self.environment, "tasks"):
            name = type(self.environment).__name__
            raise DataError(f"data.environment: {name} makes no tasks. Fix: environment=gym, or data of another kind")
        counts = {split: getattr(self, split) for split in SPLITS}
        made = self.environment.tasks(counts, held_out=EVALUATION_SPLITS, seed=seed)
        return Corpus({split: list(made.get(split, ())) for split in SPLITS}, templated=True)
