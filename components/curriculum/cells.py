"""What every curriculum shares: pools of tasks by cell (family/level), their pass rates, and draws by address.

A curriculum differs from another only in how it weighs the levels of a family.
"""

import difflib
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.curriculum import dynamic
from components.rng import stream
from components.types import Group, Task

Address = tuple[int | str, ...]
_SAVED = ("cursor", "drawn", "pass_rate", "variance")  # of each cell, in a checkpoint


@dataclass
class Cell:
    """One level of one family.

    Attributes:
        pass_rate: moving average of raw accuracy; None until observed or profiled.
        variance: moving average of the reward's variance inside a group; None likewise.
        cursor: tasks drawn so far; the pool is gone through in a new order each time round.
        drawn: tasks drawn for the step in flight.
    """

    name: str
    level: int
    tasks: list[Task]
    pass_rate: float | None = None
    variance: float | None = None
    cursor: int = 0
    drawn: int = 0
    order: tuple[int, list[Task]] = field(default=(-1, []), repr=False)  # (time round, shuffled pool)

    def take(self, n: int, address: Address) -> list[Task]:
        """The next n tasks, without replacement until the pool is exhausted."""
        taken: list[Task] = []
        for cursor in range(self.cursor, self.cursor + n):
            turn, position = divmod(cursor, len(self.tasks))
            if self.order[0] != turn:
                pool = list(self.tasks)
                stream(*address, "pool", self.name, turn).shuffle(pool)
                self.order = (turn, pool)
            taken.append(self.order[1][position])
        self.cursor += n
        self.drawn += n
        return taken


Weigh = Callable[[Sequence[Cell], int], list[float]]  # levels of one family, easiest first; steps observed → weights


class Curriculum:
    """Draws tasks family by family, level by level.

    Args:
        weigh: weights of a family's levels.
        families: relative weight of families; 1 for those not named.
        kinds: share of each task kind (the families of a kind share it); None for no such split.
        accuracy: name of the score term that is the raw accuracy.
        decay: of the moving averages, per group: new = decay·old + (1 − decay)·observed.
    """

    def __init__(
        self,
        weigh: Weigh,
        *,
        families: Mapping[str, float] | None = None,
        kinds: Mapping[str, float] | None = None,
        accuracy: str = "accuracy",
        decay: float = 0.8,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"curriculum: decay must lie in [0, 1), got {decay}")
        for name, weight in {**(families or {}), **(kinds or {})}.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"curriculum: weight of {name!r} must be 0 or more, got {weight}")
        self._weigh, self._families, self._kinds = weigh, dict(families or {}), dict(kinds or {})
        self._term, self._decay = accuracy, decay
        self._cells: dict[str, list[Cell]] = {}
        self._shares: dict[str, float] = {}
        self._address: Address = ()
        self._step = 0
        self._step_over = False

    def start(
        self, tasks: Sequence[Task], pass_rates: Mapping[str, float] | None = None, *, address: Address = ()
    ) -> None:
        """Take the pool of tasks and, where they are known, pass rates by cell.

        Args:
            address: where the orders of the pools come from, for instance (seed, stage).

        Raises:
            ValueError: no tasks, an id twice, or a weight for a family or kind that no task has.
        """
        pools: dict[tuple[str, int], list[Task]] = defaultdict(list)
        for task in sorted(tasks, key=lambda task: task.id):
            pools[task.family, task.level].append(task)
        if len({task.id for task in tasks}) != len(tasks) or not tasks:
            raise ValueError(f"curriculum: needs tasks with unique ids, got {len(tasks)} tasks")
        self._cells, self._address, self._step, self._step_over = {}, address, 0, False
        for (family, level), pool in sorted(pools.items()):
            rate = (pass_rates or {}).get(pool[0].cell)
            cell = Cell(pool[0].cell, level, pool, rate, None if rate is None else rate * (1 - rate))
            self._cells.setdefault(family, []).append(cell)
        self._shares = self._family_shares(tasks)

    def draw(self, n: int, address: Address) -> list[Task]:
        """The next n tasks, ordered by cell: `Peers.shard` then gives every rank like work.

        A function of the state and the address alone, the same on every rank.
        """
        if self._step_over:
            self._step_over = False
            for cell in self._all():
                cell.drawn = 0
        rng = stream(*address, "curriculum")
        families = list(self._cells)
        drawn: list[Task] = []
        for family, quota in zip(families, allocate(n, [self._shares[f] for f in families], rng.random()), strict=True):
            cells = self._cells[family]
            for cell, count in zip(cells, allocate(quota, self._level_weights(cells), rng.random()), strict=True):
                drawn += cell.take(count, self._address)
        return drawn

    def observe(self, groups: Iterable[Group]) -> None:
        """Take in one step's groups, all ranks' in one order: every rank then holds the same state.

        Unscored rollouts count nowhere; a group without the accuracy term leaves the pass rate as it is.
        """
        cells = {cell.name: cell for cell in self._all()}
        for group in groups:
            if (cell := cells.get(group.task.cell)) is not None:
                cell.pass_rate = self._average(cell.pass_rate, dynamic.accuracy(group, self._term))
                cell.variance = self._average(cell.variance, dynamic.variance(group))
        self._step += 1
        self._step_over = True

    def describe(self) -> dict[str, dict[str, float]]:
        """Per cell: share of the last step's draws, whether the level is open (1 or 0), pass rate where known."""
        total = sum(cell.drawn for cell in self._all()) or 1
        seen: dict[str, dict[str, float]] = {}
        for cells in self._cells.values():
            for cell, weight in zip(cells, self._level_weights(cells), strict=True):
                rate = {} if cell.pass_rate is None else {"pass_rate": cell.pass_rate}
                seen[cell.name] = {"share": cell.drawn / total, "open": float(weight > 0), **rate}
        return seen

    def state(self) -> dict[str, Any]:
        """All that a resume needs, JSON-able."""
        cells = {c.name: {name: getattr(c, name) for name in _SAVED} for c in self._all()}
        return {"step": self._step, "tasks": self._fingerprint(), "cells": cells}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`; call `start` with the same tasks before.

        Raises:
            ValueError: the state belongs to other tasks.
        """
        if state["tasks"] != self._fingerprint():
            raise ValueError(
                f"curriculum: the checkpoint was made with other tasks (fingerprint {state['tasks']}, now "
                f"{self._fingerprint()}). Restore the data, or start the stage anew."
            )
        self._step, self._step_over = state["step"], True
        for cell in self._all():
            for name in _SAVED:
                setattr(cell, name, state["cells"][cell.name][name])

    def _all(self) -> Iterable[Cell]:
        return (cell for cells in self._cells.values() for cell in cells)

    def _average(self, old: float | None, new: float | None) -> float | None:
        if old is None or new is None:
            return new if old is None else old
        return self._decay * old + (1 - self._decay) * new

    def _level_weights(self, cells: Sequence[Cell]) -> list[float]:
        weights = self._weigh(cells, self._step)
        if len(weights) != len(cells) or not all(0 <= w < math.inf for w in weights) or not any(weights):
            raise ValueError(f"curriculum: {[c.name for c in cells]} got weights {weights}; one must be above 0")
        return weights

    def _family_shares(self, tasks: Sequence[Task]) -> dict[str, float]:
        kind_of = {task.family: task.kind for task in tasks}
        _known("family", self._families, kind_of)
        _known("kind", self._kinds, kind_of.values())
        weights = {family: self._families.get(family, 1.0) for family in self._cells}
        if self._kinds:
            total: dict[str, float] = defaultdict(float)
            for family, weight in weights.items():
                total[kind_of[family]] += weight
            weights = {f: self._kinds.get(kind_of[f], 0.0) * w / (total[kind_of[f]] or 1) for f, w in weights.items()}
        if not any(weights.values()):
            raise ValueError(f"curriculum: every family has weight 0 (families {self._families}, kinds {self._kinds})")
        return weights

    def _fingerprint(self) -> str:
        text = "\n".join(f"{cell.name}\t{task.id}" for cell in self._all() for task in cell.tasks)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def allocate(n: int, weights: Sequence[float], u: float) -> list[int]:
    """Split n in proportion to weights: every part is its share rounded up or down, unbiased over u in [0, 1)."""
    total, reached, parts, cumulated = sum(weights), 0, [], 0.0
    last = max(i for i, weight in enumerate(weights) if weight > 0)  # reaches n exactly, whatever the rounding
    for i, weight in enumerate(weights):
        cumulated += weight
        upto = n if i >= last else min(n, math.floor(n * cumulated / total + u))
        parts.append(upto - reached)
        reached = upto
    return parts


def _known(what: str, named: Mapping[str, float], present: Iterable[str]) -> None:
    for name in named:
        if name not in (choices := sorted(set(present))):
            near = difflib.get_close_matches(name, choices, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"present: {', '.join(choices)}"
            raise ValueError(f"curriculum: no task has {what} {name!r}; {hint}")
