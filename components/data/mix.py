"""Several sources as one: how much of each, and by which rule and reward each is judged."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from components.data.corpus import EVALUATION_SPLITS, SPLITS, Corpus, DataError
from components.data.records import NAME
from components.data.splits import bucket, contents_of
from components.types import Example, Preference, Task

Row = TypeVar("Row", Task, Example, Preference)

KINDS = ("reasoning", "general")  # of tasks; a reward of one's own may know further ones


@dataclass(frozen=True, kw_only=True)
class Part:
    """One source of a `Mixture`.

    Attributes:
        source: any source of data (`components.data.corpus.Source`).
        weight: share of it in what is trained on, relative to the other parts that have one; the scarcest part decides
            how much that is, nothing is repeated. None takes all of it.
        cap: tasks to train on at most; fresh ones and examples are cut in proportion.
        cap_test: tasks of dev and of test at most.
        kind: of its tasks, which routes them to a mix of ``reward.kinds``. None leaves them as they are.
        verifier: how all of its answers are judged. None leaves it to the source.
        family: of all of its tasks. None leaves them as they are.
    """

    source: Any
    weight: float | None = None
    cap: int | None = None
    cap_test: int | None = None
    kind: str | None = None
    verifier: str | None = None
    family: str | None = None


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """All parts together; a task id that two of them use gets the part's name in front.

    Attributes:
        parts: name → part.
    """

    parts: Mapping[str, Part]

    def __post_init__(self) -> None:
        if not self.parts:
            raise DataError("parts: there is none. Fix: name at least one source")
        for name, part in self.parts.items():
            if not NAME.fullmatch(name):
                raise DataError(f"parts: {name!r} is not a name. Fix: letters, digits, dots, dashes, underscores")
            if part.weight is not None and not part.weight > 0:
                raise DataError(f"parts.{name}.weight: must be positive (got {part.weight}). Fix: leave the part out")
            if part.cap is not None and part.cap < 1:
                raise DataError(f"parts.{name}.cap: must be at least 1 (got {part.cap}). Fix: leave the part out")
            if part.cap_test is not None and part.cap_test < 0:
                raise DataError(f"parts.{name}.cap_test: must not be negative (got {part.cap_test}). Fix: 0 for none")
            if part.kind not in (None, *KINDS) and (near := difflib.get_close_matches(str(part.kind), KINDS, n=1)):
                raise DataError(
                    f"parts.{name}.kind: no kind is called so (got {part.kind!r}). Fix: did you mean {near[0]}? It is "
                    f"{' or '.join(KINDS)}, or a name of reward.kinds that is less like them"
                )

    def fingerprint(self) -> str:
        """Changes with the rows of any part."""
        found = [f"{n}:{p.source.fingerprint() if hasattr(p.source, 'fingerprint') else ''}" for n, p in self._items()]
        return hashlib.sha256("\n".join(found).encode()).hexdigest()

    def check(self) -> None:
        """Check every part. Raises: DataError that names the part."""
        for name, part in self._items():
            if hasattr(part.source, "check"):
                _named(name, part.source.check)

    def contents(self) -> dict[str, int]:
        """See `splits.contents_of`."""
        return contents_of(self.load(0))

    def load(self, seed: int) -> Corpus:
        loaded = {name: _named(name, part.source.load, seed) for name, part in self._items()}
        corpora = {n: _judged(loaded[n], part) for n, part in self._items()}
        sizes = self._sizes({n: len(corpus.tasks.get("train", [])) for n, corpus in corpora.items()})
        cut = {n: _cut(corpus, self.parts[n], sizes[n]) for n, corpus in corpora.items()}
        taken: set[str] = set()
        joined = []
        for name, corpus in cut.items():
            joined.append(_renamed(corpus, name, taken))
            taken |= {task.id for tasks in joined[-1].tasks.values() for task in tasks}
        kept = {name: len(corpus.tasks.get("train", [])) for name, corpus in cut.items()}
        return Corpus(
            {split: [t for c in joined for t in c.tasks.get(split, [])] for split in SPLITS},
            pretrain=[line for c in joined for line in c.pretrain],
            cold_start=[e for c in joined for e in c.cold_start],
            general=[e for c in joined for e in c.general],
            preferences=[p for c in joined for p in c.preferences],
            templated=any(c.templated for c in joined),
            dropped=_summed([c.dropped for c in joined]),
            notes=[f"{name}: {note}" for name, c in cut.items() for note in c.notes]
            + ["mixed to train on: " + ", ".join(f"{name} {n}" for name, n in kept.items())],
        )

    def _items(self) -> Sequence[tuple[str, Part]]:
        return list(self.parts.items())

    def _sizes(self, there: Mapping[str, int]) -> dict[str, int]:
        """Training tasks of each part: its cap, and its share where it has a weight."""
        room = {n: min(there[n], there[n] if p.cap is None else p.cap) for n, p in self._items()}
        weights = {n: p.weight for n, p in self._items() if p.weight is not None}
        unit = min((room[n] / w for n, w in weights.items()), default=0.0)
        return {n: min(room[n], round(weights[n] * unit)) if n in weights else room[n] for n in room}


def _cut(corpus: Corpus, part: Part, size: int) -> Corpus:
    """The first ``size`` training tasks by hash, everything else to train on in proportion."""
    there = len(corpus.tasks.get("train", []))
    if size >= there and part.cap_test is None:
        return corpus
    share = size / there if there else 1.0
    sizes: dict[str, int | None] = {s: round(share * len(rows)) for s, rows in corpus.tasks.items()}
    sizes |= dict.fromkeys(EVALUATION_SPLITS, part.cap_test) | {"profile": None}
    tasks = {split: _first(rows, sizes[split]) for split, rows in corpus.tasks.items()}
    if share == 1.0:
        return replace(corpus, tasks=tasks)
    return replace(
        corpus,
        tasks=tasks,
        pretrain=corpus.pretrain[: round(share * len(corpus.pretrain))],
        cold_start=_first(corpus.cold_start, round(share * len(corpus.cold_start))),
        general=_first(corpus.general, round(share * len(corpus.general))),
        preferences=_first(corpus.preferences, round(share * len(corpus.preferences))),
    )


def _first(rows: Sequence[Row], n: int | None) -> list[Row]:
    if n is None or n >= len(rows):
        return list(rows)
    chosen = sorted(range(len(rows)), key=lambda i: bucket("mix", rows[i].messages[-1].content))[:n]
    return [rows[i] for i in sorted(chosen)]


def _judged(corpus: Corpus, part: Part) -> Corpus:
    changes = {k: v for k in ("kind", "verifier", "family") if (v := getattr(part, k)) is not None}
    if not changes:
        return corpus
    return replace(corpus, tasks={s: [replace(t, **changes) for t in tasks] for s, tasks in corpus.tasks.items()})


def _renamed(corpus: Corpus, name: str, taken: set[str]) -> Corpus:
    clashing = {t.id for tasks in corpus.tasks.values() for t in tasks} & taken
    if not clashing:
        return corpus

    def new(identity: str) -> str:
        return f"{name[:20]}.{identity}"[:80] if identity in clashing else identity

    return replace(
        corpus,
        tasks={s: [replace(t, id=new(t.id)) for t in tasks] for s, tasks in corpus.tasks.items()},
        cold_start=[replace(e, task_id=new(e.task_id)) for e in corpus.cold_start],
        general=[replace(e, task_id=new(e.task_id)) for e in corpus.general],
        preferences=[replace(p, task_id=new(p.task_id)) for p in corpus.preferences],
    )


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(c.get(name, 0) for c in counts) for name in sorted({n for c in counts for n in c})}


def _named(name: str, act: Any, *given: Any) -> Any:
    try:
        return act(*given)
    except DataError as error:
        raise DataError(f"parts.{name}: {error}") from error
