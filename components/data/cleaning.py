"""Duplicates out, evaluation prompts out of everything that is trained on, splits disjoint, everything counted."""

from __future__ import annotations

import json
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

from components.data.corpus import EVALUATION_SPLITS, SPLITS, TRAINING_SPLITS, Corpus
from components.types import Example, Message, Preference, Task

Row = TypeVar("Row", Example, Preference)
_SPECIAL = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<tool>",
    "</tool>",
    "<result>",
    "</result>",
    "<|",
    "<s>",
    "</s>",
)
_WORLDS = ("store", "database", "files", "documents", "python")


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What counts as the same prompt.

    Attributes:
        ngram: words in a row that a training text may not share with an evaluation prompt (arXiv:2501.12948, D.1);
            evaluation prompts with fewer words are compared as a whole. 0 compares all as a whole, right for prompts
            made from one template.
        near_duplicate: Jaccard similarity of word triples from which two prompts are the same; 1.0 turns it off.
        near_duplicate_min_words: shorter prompts are only compared exactly, so that arithmetic isn't collapsed.
        max_prompt_chars: longer prompts are dropped.
    """

    ngram: int = 10
    near_duplicate: float = 0.8
    near_duplicate_min_words: int = 20
    max_prompt_chars: int = 20_000

    def __call__(self, corpus: Corpus) -> tuple[Corpus, dict[str, Any]]:
        """The cleaned corpus and the report: ``kept`` by file, ``dropped`` by reason and file, ``noted``;
        ``overlapping``: ids of the tasks that were dropped because the evaluation has them.

        A prompt found in two splits stays in the first of test, dev, profile, fresh, train.
        """
        dropped: dict[str, Counter[str]] = defaultdict(Counter)
        for reason, n in corpus.dropped.items():
            dropped[reason]["source"] += n
        overlapping: list[str] = []
        tasks = self._deduplicate(corpus.tasks, dropped, overlapping)
        evaluation = Evaluation(
            [task.messages for split in EVALUATION_SPLITS for task in tasks[split]],
            n=0 if corpus.templated else self.ngram,
        )
        for split in TRAINING_SPLITS:
            overlap = {task.id for task in tasks[split] if evaluation.contains(words_of(task.messages))}
            dropped["overlaps_evaluation"][split] += len(overlap)
            overlapping += sorted(overlap)
            tasks[split] = [task for task in tasks[split] if task.id not in overlap]
        lines = [line for line in corpus.pretrain if not evaluation.contains(words(line), prefix=True)]
        dropped["overlaps_evaluation"]["pretrain"] += len(corpus.pretrain) - len(lines)
        cleaned = replace(
            corpus,
            tasks=tasks,
            pretrain=lines,
            cold_start=_without(evaluation, corpus.cold_start, "cold_start", dropped),
            general=_without(evaluation, corpus.general, "general", dropped),
            preferences=_without(evaluation, corpus.preferences, "preferences", dropped),
        )
        return cleaned, {**_report(cleaned, dropped), "overlapping": overlapping}

    def _deduplicate(
        self, tasks: Any, dropped: dict[str, Counter[str]], overlapping: list[str]
    ) -> dict[str, list[Task]]:
        seen: dict[str, tuple[str, Task]] = {}
        ordered: list[tuple[str, Task]] = []
        for split in SPLITS:
            for task in tasks.get(split, []):
                key = " ".join([*words_of(task.messages), *_world(task)])
                if len(task.prompt) > self.max_prompt_chars:
                    dropped["too_long"][split] += 1
                elif key in seen:
                    place, first = seen[key]
                    if place in EVALUATION_SPLITS and split in TRAINING_SPLITS:
                        overlapping.append(task.id)
                    reason = "duplicate" if first.answer == task.answer else "duplicate_with_another_answer"
                    dropped[reason][split] += 1
                else:
                    seen[key] = (split, task)
                    ordered.append((split, task))
        again = set()
        if self.near_duplicate < 1:
            texts = [words_of(task.messages) for _, task in ordered]
            again = near_duplicates(texts, threshold=self.near_duplicate, min_words=self.near_duplicate_min_words)
        kept: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for i, (split, task) in enumerate(ordered):
            if i in again:
                dropped["near_duplicate"][split] += 1
            else:
                kept[split].append(task)
        return kept


class Evaluation:
    """The prompts of dev and test, ready to be looked for: whole, and by the n-grams of the longer ones.

    An n-gram found in more than 1 % of the prompts (and in three or more) is a template, not content.
    """

    def __init__(self, prompts: Iterable[Sequence[Message]], *, n: int) -> None:
        texts = [words_of(messages) for messages in prompts]
        self.n = n
        self.whole = {" ".join(text) for text in texts}
        self.lengths = sorted({len(text) for text in texts})
        counts = Counter(gram for text in texts for gram in set(_grams(text, n))) if n else Counter()
        common = max(2, 0.01 * len(texts))
        self.grams = {gram for gram, count in counts.items() if count <= common}

    def contains(self, text: list[str], *, prefix: bool = False) -> bool:
        """Whether a text is an evaluation prompt (``prefix``: or begins with one), or shares an n-gram with one."""
        lengths = [n for n in self.lengths if n <= len(text)] if prefix else [len(text)]
        if any(" ".join(text[:n]) in self.whole for n in lengths):
            return True
        return bool(self.grams) and any(gram in self.grams for gram in _grams(text, self.n))


def words(text: str) -> list[str]:
    """Words for comparison: composed, case-folded, split at white space. Not NFKC, which would make 4² into 42."""
    return unicodedata.normalize("NFC", text).casefold().split()


def words_of(messages: Sequence[Message]) -> list[str]:
    """Words of a conversation without its system prompt, which all tasks share."""
    return words(" ".join(message.content for message in messages if message.role != "system"))


def near_duplicates(texts: Sequence[list[str]], *, threshold: float, min_words: int) -> set[int]:
    """Indices of texts whose word triples overlap an earlier, kept text's by a Jaccard index of ``threshold`` or more.

    MinHash with 64 permutations in 16 bands proposes pairs (probability above 0.999 at a similarity of 0.8), the exact
    index decides (Broder 1997; Leskovec et al., Mining of Massive Datasets, §3.4).
    """
    import numpy as np  # only data with long prompts needs it

    rng = np.random.default_rng(0)
    factor = rng.integers(0, 2**63, size=64, dtype=np.uint64) * 2 + 1
    shift = rng.integers(0, 2**63, size=64, dtype=np.uint64)
    shingles: dict[int, frozenset[tuple[str, ...]]] = {}
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        if len(text) < max(min_words, 3):
            continue
        shingles[i] = frozenset(_grams(text, 3))
        hashes = np.array([zlib.crc32(" ".join(gram).encode()) for gram in shingles[i]], dtype=np.uint64)
        signature = ((hashes[:, None] * factor + shift) >> np.uint64(32)).min(axis=0)
        for band in range(16):
            buckets[band, signature[4 * band : 4 * band + 4].tobytes()].append(i)
    pairs = {pair for bucket in buckets.values() for pair in combinations(bucket, 2)}
    again: set[int] = set()
    for first, second in sorted(pairs):
        if first in again or second in again:
            continue
        a, b = shingles[first], shingles[second]
        if len(a & b) >= threshold * len(a | b):
            again.add(second)
    return again


def _world(task: Task) -> list[str]:
    """What an agent's episode begins with: the same instruction in another world is another task."""
    return [json.dumps(task.meta[name], sort_keys=True) for name in _WORLDS if name in task.meta]


def _grams(text: list[str], n: int) -> Iterable[tuple[str, ...]]:
    return (tuple(text[i : i + n]) for i in range(len(text) - n + 1))


def _without(evaluation: Evaluation, rows: list[Row], name: str, dropped: dict[str, Counter[str]]) -> list[Row]:
    kept = [row for row in rows if not evaluation.contains(words_of(row.messages))]
    dropped["overlaps_evaluation"][name] += len(rows) - len(kept)
    return kept


def _report(corpus: Corpus, dropped: dict[str, Counter[str]]) -> dict[str, Any]:
    kept = {split: len(corpus.tasks[split]) for split in SPLITS}
    for name in ("pretrain", "cold_start", "general", "preferences"):
        kept[name] = len(getattr(corpus, name))
    cells = {split: dict(sorted(Counter(task.cell for task in corpus.tasks[split]).items())) for split in SPLITS}
    marked = sum(
        any(tag in message.content for message in task.messages for tag in _SPECIAL)
        for split in SPLITS
        for task in corpus.tasks[split]
    )
    return {
        "kept": kept,
        "cells": cells,
        "dropped": {reason: {k: n for k, n in by.items() if n} for reason, by in dropped.items() if any(by.values())},
        "noted": {"prompts_with_special_tokens": marked, "source": corpus.notes},
    }
