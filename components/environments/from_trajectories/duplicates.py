"""Environments that are the same, or nearly: judged by world, instruction and verifier."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from components.environments.from_trajectories.transcript import Reason
from components.environments.from_trajectories.validate import Environment

_N = 3  # characters of a shingle
_ALIKE = 0.45  # Jaccard index of instructions whose worlds and ends are alike
_SPELLING = 0.4  # of pairs of letters in two spellings of one word: organise, organize
_WORLD = 0.8


def without_duplicates(
    environments: Sequence[Environment],
) -> tuple[list[Environment], list[tuple[Environment, Reason, str]]]:
    """(kept, left out with reason and detail); the first of equal ones stays, whatever the order of the others.

    * One world and one instruction up to spelling: "duplicate". If their ends differ, the end of the majority stays;
      without a majority all are "contradictory".
    * One end, instructions alike and worlds alike by shingles: "near_duplicate".
    """
    out: list[tuple[Environment, Reason, str]] = []
    kept: list[Environment] = []
    for group in _same_tasks(environments):
        ends = Counter(_key(environment.check) for environment in group)
        (most, count), *others = ends.most_common(2)
        if others and others[0][1] == count:
            out.extend((e, "contradictory", f"as {_others(e, group)}, with another end") for e in group)
            continue
        agreed = [environment for environment in group if _key(environment.check) == most]
        kept.append(agreed[0])
        out.extend((e, "duplicate", f"of {agreed[0].id}") for e in agreed[1:])
        detail = f"{count} of {len(group)} solutions end as {agreed[0].id}"
        out.extend((e, "contradictory", detail) for e in group if not any(e is other for other in agreed))
    first: list[Environment] = []
    by_end: dict[Hashable, list[Environment]] = defaultdict(list)
    for environment in kept:
        alike = by_end[environment.toolset, _key(environment.check)]
        twin = next((other for other in alike if _nearly(other, environment)), None)
        if twin is None:
            first.append(environment)
            alike.append(environment)
        else:
            out.append((environment, "near_duplicate", f"of {twin.id}"))
    return first, out


def _same_tasks(environments: Sequence[Environment]) -> list[list[Environment]]:
    groups: dict[Hashable, list[list[Environment]]] = defaultdict(list)
    for environment in environments:
        places = groups[_key(environment.world)]
        known = frozenset(_plain(_key(environment.world)))
        home = next((g for g in places if _one_instruction(g[0].instruction, environment.instruction, known)), None)
        if home is None:
            places.append([environment])
        else:
            home.append(environment)
    order = {id(environment): i for i, environment in enumerate(environments)}
    return sorted((g for places in groups.values() for g in places), key=lambda group: order[id(group[0])])


def _one_instruction(a: str, b: str, known: frozenset[str]) -> bool:
    """The same up to case, punctuation and slips of the pen; numbers and what the world names must be equal."""
    plain_a, plain_b = _plain(a), _plain(b)
    if plain_a == plain_b:
        return True
    if _exact_parts(a) != _exact_parts(b) or len(plain_a) != len(plain_b):
        return False
    pairs = [(x, y) for x, y in zip(plain_a, plain_b, strict=True) if x != y]
    return len(pairs) <= 2 and all(_slip(x, y) and not (x in known and y in known) for x, y in pairs)


def _slip(x: str, y: str) -> bool:
    return min(len(x), len(y)) > 3 and jaccard(shingles(x, 2), shingles(y, 2)) >= _SPELLING


def _nearly(a: Environment, b: Environment) -> bool:
    """Whether two tasks with one end are worded alike, in worlds that are alike."""
    return (
        jaccard(shingles(a.instruction), shingles(b.instruction)) >= _ALIKE
        and jaccard(shingles(_key(a.world)), shingles(_key(b.world))) >= _WORLD
    )


def shingles(text: str, n: int = _N) -> frozenset[str]:
    """Runs of n characters, case and white space aside."""
    text = " ".join(text.casefold().split())
    return frozenset(text[i : i + n] for i in range(max(1, len(text) - n + 1)))


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """|a ∩ b| / |a ∪ b|; 1 for two empty sets."""
    return len(a & b) / len(a | b) if a | b else 1.0


def _plain(text: str) -> list[str]:
    text = unicodedata.normalize("NFC", text).casefold()
    return re.findall(r"[\w./-]*\w", text)


def _exact_parts(text: str) -> list[str]:
    return [word for word in _plain(text) if any(letter.isdigit() or letter in "./_" for letter in word)]


def _key(value: Any) -> str:
    """A value as text, rows of tables in one order."""
    return json.dumps(_sorted_rows(value), sort_keys=True, ensure_ascii=False)


def _sorted_rows(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: sorted(v, key=repr) if k == "$rows" else _sorted_rows(v) for k, v in value.items()}
    return value


def _others(environment: Environment, group: Iterable[Environment]) -> str:
    return next((other.id for other in group if other is not environment), "")
