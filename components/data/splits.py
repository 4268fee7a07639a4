"""Splits by a hash of the prompt: the evaluation never moves, and what is trained on moves with the seed alone."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from components.data.corpus import Corpus
from components.rng import derive
from components.types import Task

T = TypeVar("T")


def bucket(purpose: str, prompt: str) -> float:
    """A number in [0, 1) that belongs to the prompt, white space and case aside."""
    return derive("split", purpose, " ".join(prompt.casefold().split())) / 2**63


def share(tasks: Sequence[Task], seed: int, *, fresh_fraction: float, profile_per_cell: int) -> dict[str, list[Task]]:
    """Profile, fresh and train, set apart by a hash that depends on the seed; unverifiable tasks stay in train."""
    parts: dict[str, list[Task]] = {"profile": [], "fresh": [], "train": []}
    taken: dict[str, int] = defaultdict(int)
    room = Counter(task.cell for task in tasks)
    for task in sorted(tasks, key=lambda t: bucket(f"share-{seed}", t.prompt)):
        if task.kind == "reasoning" and taken[task.cell] < min(profile_per_cell, room[task.cell] // 4):
            taken[task.cell] += 1
            parts["profile"].append(task)
        elif task.kind == "reasoning" and bucket(f"fresh-{seed}", task.prompt) < fresh_fraction:
            parts["fresh"].append(task)
        else:
            parts["train"].append(task)
    return parts


class First(Generic[T]):
    """The first ``limit`` items by hash of their prompts, whatever their order and number; all of them without one."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self._count = limit, 0
        self._all: list[T] = []
        self._heap: list[tuple[float, int, T]] = []

    def add(self, prompt: str, item: T) -> None:
        self._count += 1
        if self.limit is None:
            self._all.append(item)
            return
        entry = (-bucket("first", prompt), self._count, item)  # the count keeps items from being compared
        if len(self._heap) < self.limit:
            heapq.heappush(self._heap, entry)
        elif self._heap and entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def items(self) -> list[T]:
        """In the order they came; with a limit, by hash."""
        return self._all if self.limit is None else [item for *_, item in sorted(self._heap, key=lambda e: -e[0])]


def contents_of(corpus: Corpus) -> dict[str, int]:
    """Rows of each file that a corpus leads to, tasks for RL by ``train/<family>`` and ``train/<kind>``, all tasks by
    ``verifier/<name>`` and ``tool/<name>`` that they offer, ``traces/tags`` that call tools in tags, the size of the
    longest prompt and of the plain text."""
    counts = {f"tasks/{split}.jsonl": len(tasks) for split, tasks in corpus.tasks.items()}
    for name in ("cold_start", "general", "preferences"):
        counts[f"{name}.jsonl"] = len(getattr(corpus, name))
    groups = Counter(name for task in corpus.tasks.get("train", ()) for name in {task.family, task.kind})
    everything = [task for tasks in corpus.tasks.values() for task in tasks]
    counts |= {f"verifier/{name}": n for name, n in Counter(task.verifier for task in everything).items()}
    counts |= Counter(f"tool/{name}" for task in everything for name in task.meta.get("tools") or ())
    counts["traces/tags"] = sum("<tool>" in example.response for example in corpus.cold_start)
    counts["prompts/bytes"] = max((_said(task) for task in everything), default=0)
    text = {"pretrain.txt": len(corpus.pretrain), "pretrain.txt/bytes": _size(corpus.pretrain)}
    return {**counts, **text, **{f"train/{name}": n for name, n in groups.items()}}


def _said(task: Task) -> int:
    return sum(len(message.content.encode()) for message in task.messages)


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
