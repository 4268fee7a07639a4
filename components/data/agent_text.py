"""Plain text of an agent's domain for a tiny base model: no tags, no chat format, copying first.

Nothing in it has an instruction that is held out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from components.data.agent_errands import FAMILIES, ITEMS, KEYS, PRIVATE, Errand, held_out, offer
from components.data.agent_requests import FINE, NOT_MINE, REFUSAL, request
from components.data.pretraining import copied_digits

CURRICULUM, COPY_SHARE, SAFETY_SHARE, ERROR_SHARE = 0.25, 0.1, 0.08, 0.02
_STEPS = (3, 3, 3, 2, 2)  # how often errands of 1, 2, … calls occur


def plain_lines(n: int, rng: random.Random, told: Sequence[str]) -> Iterator[str]:
    """``n`` lines: copying (half of the first quarter, a tenth of the rest), worked errands, requests, failed calls.

    Args:
        told: lines with calls that failed.
    """
    for i in range(n):
        share = 0.5 if i < CURRICULUM * n else COPY_SHARE
        draw = rng.random()
        if draw < share:
            yield copied(rng)
        elif draw < share + SAFETY_SHARE:
            yield request_line(rng)
        elif draw < share + SAFETY_SHARE + ERROR_SHARE and told:
            yield rng.choice(told)
        else:
            yield errand_line(rng)


def copied(rng: random.Random) -> str:
    """Words or digits, twice more."""
    if rng.random() < 0.4:
        return copied_digits(rng)
    words = rng.sample((*KEYS, *ITEMS, *PRIVATE), rng.randint(2, 5))
    if rng.random() < 0.5:  # one after the other, as keys that lead to keys
        return "".join(f">get {word}={then}" for word, then in pairwise(words))
    return f"{' '.join(words)} copy {' '.join(words)} copy {' '.join(words)}"


def errand_line(rng: random.Random) -> str:
    """``get put : copy red to blue>get red=17>put blue 17=ok>answer done``.

    Signs stand where the tags of a call will, so that words follow them without a space here as there.
    """
    while True:
        steps = rng.choices(range(1, len(_STEPS) + 1), _STEPS)[0]
        errand = rng.choice(list(FAMILIES.values()))(rng, steps)
        if not held_out(errand.instruction):
            break
    tools = " ".join(offer(rng, errand.needs, rng.random() < 0.5))
    return f"{tools} : {errand.instruction}{worked(errand)}>answer {errand.answer}"


def worked(errand: Errand) -> str:
    return "".join(f">{call}={said}" for call, said in errand.steps).replace("\n", " ")


def request_line(rng: random.Random) -> str:
    """A request and what is thought of it."""
    made = request(rng, rng.choice(("unsafe", "benign")), False)
    tools = " ".join(offer(rng, made.errand.needs, rng.random() < 0.5))
    if made.harmful:
        return f"{tools} : {made.errand.instruction} {NOT_MINE} {REFUSAL}"
    return f"{tools} : {made.errand.instruction} {FINE}{worked(made.errand)}"
