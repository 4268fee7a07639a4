"""The mix: a reward is a weighted sum of named terms; tasks of different sources may have different mixes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from components.rewards.isolated import Isolated
from components.rewards.mix_settings import (  # preflight asks for the checks here
    call_problems,
    common_problems,
    mix_check,
    route_check,
)
from components.rewards.outcome import as_score, as_scores, name_of, raised
from components.rewards.schedule import factor, is_active, standardised
from components.types import Group, Rollout, Score, Task

Pair = tuple[Task, Rollout]
Names = Mapping[str, float]


class Mix:
    """R = Σ_k w_k · f_k(progress) · g_k · term_k over the terms that count at this point of training.

    A term is a function or object ``(task, rollout) -> float | Score``, or an object with
    ``batch(pairs) -> list[float | Score]``. It gives a score, abstains (a `Score` that says so), or fails: it raises,
    hangs, or returns what is not a finite number. A rollout on which a term failed is "failed" with the cause, never
    trained on as 0. The terms of a `Score` that a term returns are logged as ``term.name``.

    Terms from outside r1flow run in killable processes, see `Isolated`.

    Args:
        terms: name → term.
        weights: name → weight w; must name the same terms, at least one non-zero.
        active: name → [from, to), share of the steps during which a term counts; always, where not named.
        ramps: name → points [share of the steps, factor f], linear in between, constant outside; 1 where not named.
        gates: name → other term → least raw value at which the first one counts (g = 1, else 0):
            ``{accuracy: {format: 1}}`` is no accuracy reward without the form.
        normalise: name → "batch" or "group": the term's z-score over the step's rollouts of this mix, or over the
            rollouts of the same prompt, in place of its raw value.
        penalties: terms that measure something bad, whose weights may be negative.
        abstained: a rollout on which a term abstained is left out of training ("mask"), or goes without that term
            ("skip").
        isolate: false runs every term in this process, where nothing can end one that hangs.
        seconds, retries, workers: of the processes, see `Isolated`.

    Raises:
        ValueError: settings that make no sense, each named.
    """

    def __init__(
        self,
        *,
        terms: Mapping[str, Any],
        weights: Mapping[str, float],
        active: Mapping[str, Sequence[float]] | None = None,
        ramps: Mapping[str, Sequence[Sequence[float]]] | None = None,
        gates: Mapping[str, Mapping[str, float]] | None = None,
        normalise: Mapping[str, str] | None = None,
        penalties: Sequence[str] = (),
        abstained: Literal["mask", "skip"] = "mask",
        isolate: bool = True,
        seconds: float = 10.0,
        retries: int = 1,
        workers: int = 2,
    ) -> None:
        figures = {"seconds": seconds, "retries": retries, "workers": workers}
        settings = {"terms": terms, "weights": weights, "penalties": penalties, **figures}
        settings |= {"active": active, "ramps": ramps, "gates": gates, "normalise": normalise}
        if problems := [
            *mix_check(settings),
            *common_problems(settings),
            *call_problems({n: t for n, t in terms.items() if weights.get(n)}),
        ]:
            raise ValueError("; ".join(f"reward.{problem}" for problem in problems))
        self.terms = {name: _isolated(term, figures) if isolate else term for name, term in terms.items()}
        self.weights, self.active, self.ramps = dict(weights), dict(active or {}), dict(ramps or {})
        self.gates, self.normalise, self.abstained = dict(gates or {}), dict(normalise or {}), abstained
        self._sources = {name: name_of(getattr(term, "term", term)) for name, term in self.terms.items()}

    def score(self, pairs: Sequence[Pair], progress: float = 0.0) -> list[Score]:
        """Scores of (task, rollout) pairs; ``progress`` in [0, 1) is the share of the steps already done."""
        weights = self._in_force(progress)
        conditions = {other for name in weights for other in self.gates.get(name, ())}
        names = [name for name in self.terms if name in weights or name in conditions]
        columns = {name: _evaluate(self.terms[name], pairs) for name in names}
        return [self._combine({name: columns[name][i] for name in names}, weights) for i in range(len(pairs))]

    def settle(self, groups: Sequence[Group], progress: float = 0.0) -> list[Group]:
        """The groups of a whole step, their scores with the terms normalised that ask for it."""
        weights = self._in_force(progress)
        norms = {name: over for name, over in self.normalise.items() if name in weights}
        if not norms:
            return list(groups)
        usable = [[dict(s.terms) if s.outcome == "scored" else {} for s in group.scores] for group in groups]
        columns = {
            name: standardised([[terms.get(name) for terms in group] for group in usable], per_group=over == "group")
            for name, over in norms.items()
        }
        settled = []
        for g, group in enumerate(groups):
            scores = list(group.scores)
            for i, score in enumerate(scores):
                if score.outcome == "scored":
                    z = {name: value for name in norms if (value := columns[name][g][i]) is not None}
                    scores[i] = self._total(score.terms, weights, z)
            settled.append(Group(group.task, group.rollouts, tuple(scores)))
        return settled

    def keep_in(self, folder: Path, rank: int = 0) -> None:
        """Where terms that pay for their answers keep them, each in a folder of its own."""
        for name, term in self.terms.items():
            if hasattr(term, "keep_in"):
                term.keep_in(folder / name, rank)

    def facts(self) -> dict[str, str]:
        """What the terms found out about the machine and that settings don't say (the sandbox that ``auto`` took)."""
        found: dict[str, str] = {}
        for term in self.terms.values():
            found |= term.facts() if hasattr(term, "facts") else {}
        return found

    def _in_force(self, progress: float) -> Names:
        """Name → weight at this point, of the terms that count."""
        now = {
            name: weight * factor(self.ramps[name], progress) if name in self.ramps else weight
            for name, weight in self.weights.items()
            if is_active(self.active.get(name), progress)
        }
        return {name: now[name] for name in self.terms if now.get(name)}

    def _combine(self, found: Mapping[str, float | Score], weights: Names) -> Score:
        told = {name: score for name, score in found.items() if isinstance(score, Score)}
        if not told:
            return self._total(found, weights)  # type: ignore[arg-type]
        terms = {name: value for name, value in found.items() if not isinstance(value, Score)}
        for name, score in told.items():
            terms |= {name: score.total} if score.outcome == "scored" else {}
            terms |= {f"{name}.{part}": value for part, value in score.terms.items()}
        for outcome in ("failed", "abstained"):
            reasons = [f"{n} ({self._sources[n]}) {s.reason}" for n, s in told.items() if s.outcome == outcome]
            if reasons and (outcome == "failed" or self.abstained == "mask" or not terms.keys() & weights.keys()):
                return Score(0.0, terms, outcome, "; ".join(reasons))
        return self._total(terms, weights)

    def _total(self, terms: Names, weights: Names, scaled: Names = MappingProxyType({})) -> Score:
        """The total of raw terms, some of which are replaced by scaled ones."""
        used = {**terms, **scaled} if scaled else terms
        weighted = {name: weight * used[name] for name, weight in weights.items() if name in terms}
        for name in self.gates.keys() & weighted.keys():
            if any(terms.get(other, -inf) < least for other, least in self.gates[name].items()):
                weighted[name] = 0.0
        if not isfinite(total := sum(weighted.values())):
            return Score(0.0, terms, "failed", f"the weighted sum of {', '.join(weighted)} is {total}")
        return Score(total, terms, weighted=weighted)


class Route:
    """Sends each task to the mix of its source.

    Args:
        by: "kind", "family", "verifier", or "meta.NAME".
        routes: source → mix.
        default: mix of the tasks of any other source; without it such a task is an error.
    """

    def __init__(self, *, by: str, routes: Mapping[str, Any], default: Any = None) -> None:
        if problems := route_check({"by": by, "routes": routes}):
            raise ValueError("; ".join(f"reward.{problem}" for problem in problems))
        self.by, self.routes, self.default = by, dict(routes), default

    def score(self, pairs: Sequence[Pair], progress: float = 0.0) -> list[Score]:
        scores: list[Any] = [None] * len(pairs)
        for mix, at in self._sorted([task for task, _ in pairs]):
            for i, score in zip(at, mix.score([pairs[i] for i in at], progress), strict=True):
                scores[i] = score
        return scores

    def settle(self, groups: Sequence[Group], progress: float = 0.0) -> list[Group]:
        settled = list(groups)
        for mix, at in self._sorted([group.task for group in groups]):
            if hasattr(mix, "settle"):
                for i, group in zip(at, mix.settle([groups[i] for i in at], progress), strict=True):
                    settled[i] = group
        return settled

    def keep_in(self, folder: Path, rank: int = 0) -> None:
        for source, mix in {**self.routes, "default": self.default}.items():
            if hasattr(mix, "keep_in"):
                mix.keep_in(folder / source, rank)

    def facts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for mix in (*self.routes.values(), self.default):
            found |= mix.facts() if hasattr(mix, "facts") else {}
        return found

    def source(self, task: Task) -> str:
        """What the task is routed by."""
        _, meta, name = self.by.partition("meta.")
        return str(task.meta.get(name) if meta else getattr(task, self.by))

    def _sorted(self, tasks: Sequence[Task]) -> list[tuple[Any, list[int]]]:
        """Mixes and the positions of their tasks."""
        at: dict[str, list[int]] = {}
        for i, task in enumerate(tasks):
            at.setdefault(self.source(task), []).append(i)
        unknown = sorted(at.keys() - self.routes.keys())
        if unknown and self.default is None:
            raise ValueError(
                f"reward: no mix for tasks of {self.by} {unknown[0]!r} (task {tasks[at[unknown[0]][0]].id}). "
                f"Fix: add it to the reward's routes ({', '.join(sorted(self.routes))}), or give a default"
            )
        return [(self.routes.get(source, self.default), at[source]) for source in sorted(at)]


class ByKind(Route):
    """`Route` by the kind of task (R1's second RL: rules on reasoning, preferences on general data)."""

    def __init__(self, *, kinds: Mapping[str, Any]) -> None:
        super().__init__(by="kind", routes=kinds)


def _evaluate(term: Any, pairs: Sequence[Pair]) -> Sequence[float | Score]:
    """The term's value for each pair, or its outcome where there is more to say."""
    if hasattr(term, "batch"):
        try:
            return as_scores(term.batch(pairs), len(pairs))
        except Exception:
            return [raised()] * len(pairs)
    return [_evaluate_one(term, task, rollout) for task, rollout in pairs]


def _evaluate_one(term: Any, task: Task, rollout: Rollout) -> float | Score:
    try:
        value = term(task, rollout)
        return value if type(value) is float and isfinite(value) else as_score(value)
    except Exception:
        return raised()


def _isolated(term: Any, figures: Mapping[str, Any]) -> Any:
    """The term in processes of its own if it comes from outside and can be sent there."""
    function = term.func if isinstance(term, functools.partial) else term
    home = function.__module__ if hasattr(function, "__qualname__") else type(function).__module__
    if home.split(".")[0] == "components":
        return term
    try:
        return Isolated(term=term, **figures)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s. It runs in the training process, where it must not hang.", error)
        return term
