"""What the figures are measured on, and a search for it in whatever a stage reads to learn from.

Written against the files alone: it shares no code with the generators and the cleaning it watches over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

TRAINING_TASKS = ("train", "fresh", "profile")


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def words(text: str) -> tuple[str, ...]:
    """Words, signs, tags and ends of lines, without case or spacing."""
    return tuple(re.findall(r"<[^<>]*>|\w+|[^\w\s]|\n", text.casefold()))


def held_out_prompts(curated: Path) -> set[tuple[str, ...]]:
    """Every prompt of the test split and its twin: gcd(a, b) is gcd(b, a)."""
    prompts = {words(row["messages"][-1]["content"]) for row in rows(curated / "tasks" / "test.jsonl")}
    twins = {("gcd", "of", p[4], "and", p[2], "?") for p in prompts if p[:2] == ("gcd", "of")}
    return prompts | twins


class Search:
    """Finds prompts as runs of whole words, wherever in a text one can begin: at its start, after a tag, sign or line.

    After a digit or an operator another one has begun: "13 + 4 = ?" and "9 - 3 + 4 = ?" are not "3 + 4 = ?". After a
    word neither: a greeting before a question makes another prompt of it.
    """

    def __init__(self, prompts: Iterable[tuple[str, ...]]) -> None:
        self.by_beginning: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for prompt in prompts:
            self.by_beginning.setdefault(prompt[:3], []).append(prompt)

    def __call__(self, texts: Iterable[str]) -> list[str]:
        """Texts that hold a prompt."""
        return [text for text in texts if self.holds(words(text))]

    def holds(self, text: tuple[str, ...]) -> bool:
        for start in range(len(text)):
            if start and re.fullmatch(r"\w+|[-+*/]", text[start - 1]):
                continue
            for prompt in self.by_beginning.get(text[start : start + 3], ()):
                if text[start : start + len(prompt)] == prompt:
                    return True
        return False


def training_texts(curated: Path) -> dict[str, list[str]]:
    """What stages learn from of the curated data, by file: prompts, and all that is written for a model to imitate."""
    texts = {"pretrain.txt": (curated / "pretrain.txt").read_text(encoding="utf-8").splitlines()}
    for split in TRAINING_TASKS:
        texts[split] = [
            message["content"] for row in rows(curated / "tasks" / f"{split}.jsonl") for message in row["messages"]
        ]
    for name in ("cold_start", "general"):
        texts[name] = list(_examples(curated / f"{name}.jsonl"))
    return texts


def _examples(file: Path) -> Iterator[str]:
    for row in rows(file):
        yield from (message["content"] for message in row["messages"])
        yield row["response"]


def kept_texts(rejection: Path) -> list[str]:
    return list(_examples(rejection / "kept.jsonl"))


def preference_texts(preferences: Path) -> list[str]:
    return [
        text
        for row in rows(preferences / "train.jsonl")
        for text in (*(message["content"] for message in row["messages"]), row["chosen"], row["rejected"])
    ]
