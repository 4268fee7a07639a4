"""Language-consistency reward: the share of target-language words in the reasoning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from components.rewards.response import take_apart
from components.types import Rollout, Task

# Function words that are common in one of the languages and in none of the others.
_WORDS: dict[str, Set[str]] = {
    "en": frozenset(
        "the and is are was were of that this with for then first so because which from have has not but they we you "
        "it be will would should could there therefore since what when how thus finally next now".split()
    ),
    "es": frozenset(
        "el los las una que por para con entonces primero luego porque pero este esta como cuando donde tiene son "
        "también después así finalmente ahora siguiente del al se lo más sí".split()
    ),
    "fr": frozenset(
        "le les des une est sont que qui dans pour avec donc alors puis ensuite parce mais cette comme quand où aussi "
        "enfin maintenant du au nous vous".split()
    ),
    "de": frozenset(
        "der die das und ist sind nicht ein eine mit für dann zuerst weil aber diese wie wenn auch also schließlich "
        "jetzt wir sie wird werden".split()
    ),
}
# Languages known by their script: a run of its letters is a word, or each character where words aren't spaced.
_SCRIPTS: dict[str, re.Pattern[str]] = {
    "zh": re.compile(r"[\u3400-\u9fff\uf900-\ufaff]"),
    "ja": re.compile(r"[\u3041-\u30ff]"),
    "ko": re.compile(r"[\uac00-\ud7a3]+"),
    "ru": re.compile(r"[\u0400-\u04ff]+"),
    "el": re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]{2,}"),  # a single letter is a symbol
    "ar": re.compile(r"[\u0620-\u065f\u066e-\u06d3]+"),
    "he": re.compile(r"[\u05d0-\u05ea]+"),
    "hi": re.compile(r"[\u0900-\u0963\u0970-\u097f]+"),
    "th": re.compile(r"[\u0e01-\u0e4e]"),
}
TARGETS = (*_WORDS, *_SCRIPTS)
_WORD = re.compile(r"[^\W\d_]+")
_LATIN = re.compile(r"\\?[a-zA-Z\u00c0-\u024f]{4,}")  # with the backslash: a command of LaTeX


def consistency(task: Task, rollout: Rollout, *, target: str = "en") -> float:
    """Share of the reasoning's recognised words that belong to the target language; 1.0 if none is recognised.

    A word is recognised if it is a function word of one language only, or written in a script that tells the language
    (a character counts as a word in Chinese, Japanese and Thai). Where the target has a script of its own, Latin words
    of four letters or more are foreign too. Chinese characters beside kana are Japanese. A response that was cut off,
    or has no thinking, scores 0.0: otherwise saying nothing would be consistent.

    Args:
        target: one of `TARGETS`.

    Raises:
        ValueError: unknown target.

    Source: arXiv:2501.12948 §2.3.2.
    """
    if problems := consistency_check({"target": target}):
        raise ValueError(f"reward language.{problems[0]}")
    thinking = take_apart(rollout.response).thinking
    if rollout.finish != "stop" or not thinking:
        return 0.0
    counts = language_counts(thinking)
    if target in _SCRIPTS:
        known = set().union(*_WORDS.values())
        words = [word.lower() for word in _LATIN.findall(thinking) if word[0] != "\\"]
        counts["other"] = sum(word not in known for word in words)
    recognised = sum(counts.values())
    return counts[target] / recognised if recognised else 1.0


def language_counts(text: str) -> dict[str, int]:
    """Language → recognised words. Linear time."""
    words = [word.lower() for word in _WORD.findall(text)]
    counts = {language: sum(word in known for word in words) for language, known in _WORDS.items()}
    for language, script in _SCRIPTS.items():
        counts[language] = 0 if text.isascii() else len(script.findall(text))
    if counts["ja"]:
        counts["ja"], counts["zh"] = counts["ja"] + counts["zh"], 0
    return counts


def consistency_check(settings: Mapping[str, Any]) -> list[str]:
    """A target language that isn't known."""
    target = settings.get("target", "en")
    return [] if target in TARGETS else [f"target: unknown target {target!r}. Fix: one of {', '.join(TARGETS)}"]
