"""Language-consistency reward: the share of target-language words in the reasoning."""

from __future__ import annotations

import re
from collections.abc import Set

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
_WORD = re.compile(r"[^\W\d_]+")
_HAN = re.compile(r"[\u3400-\u9fff]")


def consistency(task: Task, rollout: Rollout, *, target: str = "en") -> float:
    """Share of the reasoning's recognised words that belong to the target language; 1.0 if none is recognised.

    A word is recognised if it is a function word of one language only, or (Chinese) a Han character. A response that
    was cut off, or has no thinking, scores 0.0: otherwise saying nothing would be consistent.

    Args:
        target: "en", "es", "fr", "de" or "zh".

    Raises:
        ValueError: unknown target.

    Source: arXiv:2501.12948 §2.3.2.
    """
    if target not in _WORDS and target != "zh":
        raise ValueError(f"reward language: unknown target {target!r}. Fix: one of {', '.join([*_WORDS, 'zh'])}")
    thinking = take_apart(rollout.response).thinking
    if rollout.finish != "stop" or not thinking:
        return 0.0
    words = [word.lower() for word in _WORD.findall(thinking)]
    counts = {language: sum(word in known for word in words) for language, known in _WORDS.items()}
    counts["zh"] = len(_HAN.findall(thinking))
    recognised = sum(counts.values())
    return counts[target] / recognised if recognised else 1.0
