"""Searches: Optuna chooses the values, and a trial is a run, or one run per seed and the mean of their objectives.

Hydra's own Optuna sweeper works inside ``hydra.main`` and wants optuna < 3; configuration is composed here without
``hydra.main`` and every run has a process of its own. So Optuna is asked and told directly. Its journal lies beside the
sweep's record, and what it draws for a trial depends on the seed and the trial's number alone: a search that was
interrupted goes on as if it had not been, and ``sweep.search.trials=40`` continues one of 20.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flows.errors import BadInput, Problem
from flows.runs import list_runs
from flows.settings import COMMAND_LINE, Groups
from flows.sweep.grid import Request, is_seed, named, repeated, repetitions, sweep_values
from flows.sweep.pool import Arm
from flows.sweep.record import SweepRecord

Sampler = Literal["tpe", "random", "cmaes", "gp"]
JOURNAL = "optuna.jsonl"


class Optuna:
    """Settings of a search; the space is what is swept: ``interval(0.01,1)``, ``int(interval(1,9))``,
    ``tag(log,interval(…))``, ``a,b,c``.

    Args:
        trials: how many in all.
        sampler: how values are chosen.
        startup: trials that are drawn at random first.
        seed: of what is drawn.
    """

    def __init__(self, *, trials: int = 20, sampler: Sampler = "tpe", startup: int = 8, seed: int = 0) -> None:
        if trials < 1 or startup < 1:
            raise ValueError(f"sweep.search: trials={trials}, startup={startup} must be at least 1. Fix: trials=20")
        self.trials, self.sampler, self.startup, self.seed = trials, sampler, startup, seed


@dataclass(frozen=True)
class Search:
    """A search that is fit to run. ``source`` makes the arms' source for a sweep's record."""

    source: Callable[[SweepRecord], Trials]
    identity: Any
    notes: list[str]


def make_search(request: Request, groups: Groups, prepare: Callable[[Sequence[str]], Any]) -> Search:
    """Check a search: its settings, its space, and that runs at the ends of the space are fit to run.

    Raises: BadInput.
    """
    optuna = _optuna()
    settings = _settings(request)
    space, seeds = read_space(request, groups)
    first, last = (
        [f"{key}={_ends(distribution)[corner]}" for key, distribution in space.items()] for corner in (0, -1)
    )
    of_seeds = [prepare([*request.fixed, *first, *seed]) for seed in seeds]
    again, prepared = repetitions(of_seeds), prepare([*request.fixed, *last, *seeds[0]])
    notes = repeated([" ".join(seed) for seed in seeds], again)
    seeds = [seed for i, seed in enumerate(seeds) if i not in again]
    from flows.objective import read_objective

    objective = read_objective(prepared.config.root.get("objective"))
    fixed = [text for text in request.fixed if not text.lstrip("+").startswith("sweep.search.trials=")]
    identity = [
        "search",
        fixed,
        dict(request.swept),
        {k: v for k, v in (request.search or {}).items() if k != "trials"},
    ]

    def source(record: SweepRecord) -> Trials:
        return Trials(optuna, settings, space, seeds, request.fixed, objective.maximise, record, prepared.artifacts)

    return Search(source, identity, notes)


def read_space(request: Request, groups: Groups) -> tuple[dict[str, Any], list[list[str]]]:
    """What is searched, key → Optuna's distribution, and the seed overrides of each run of a trial.

    Raises: BadInput for a space without dimensions.
    """
    space: dict[str, Any] = {}
    repeats: list[list[str]] = []
    for key, text in request.swept.items():
        if is_seed(text):
            repeats.append(sweep_values(text, groups))  # a seed is no knob: trials are averaged over it
        else:
            space[key] = _distribution(key, text, groups)
    if not space:
        fix = "give intervals or values: reward.weights.format='interval(0.01,0.5)'"
        raise BadInput(Problem(COMMAND_LINE, "sweep.search", "has nothing to search", fix=fix))
    return space, [list(each) for each in itertools.product(*repeats)]


def _distribution(key: str, text: str, groups: Groups) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    override = OverridesParser.create().parse_override(text)
    if not override.is_sweep_override() or override.is_discrete_sweep():
        choices: dict[str, str] = {}
        for value in sweep_values(text, groups):
            choices.setdefault(_read(value), value.partition("=")[2])
        return CategoricalDistribution(list(choices.values()))
    interval = override.value()
    assert isinstance(interval, IntervalSweep)
    low, high, log = interval.start, interval.end, "log" in interval.tags
    if low is None or high is None or not low < high or (log and low <= 0):
        fix = "write interval(low, high) with low < high; tag(log, interval(…)) needs low > 0"
        raise BadInput(Problem(COMMAND_LINE, text, "is no interval", fix=fix))
    if isinstance(low, int) and isinstance(high, int):  # written int(interval(1,20))
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _read(override: str) -> str:
    """What tells a value from others, however it is written: 0.1 and 0.10 are one choice."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    value = OverridesParser.create().parse_override(override).value()
    return repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


def _ends(distribution: Any) -> tuple[Any, Any]:
    choices = getattr(distribution, "choices", None)
    return (choices[0], choices[-1]) if choices else (distribution.low, distribution.high)


class Trials:
    """The arms of a search. The study's journal has what was drawn and found, the sweep's record which runs ended.

    A trial whose runs did not all end well is told to Optuna as failed; one that was interrupted runs again as it was.
    """

    def __init__(
        self,
        optuna: Any,
        settings: Optuna,
        space: Mapping[str, Any],
        seeds: Sequence[Sequence[str]],
        fixed: Sequence[str],
        maximise: bool,
        record: SweepRecord,
        artifacts: Any,
    ) -> None:
        self._optuna, self._settings, self._space, self._seeds = optuna, settings, dict(space), seeds
        self._fixed, self._record, self._artifacts = fixed, record, artifacts
        backend = optuna.storages.journal.JournalFileBackend(str(record.directory / JOURNAL))
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=record.digest,
            direction="maximize" if maximise else "minimize",
            load_if_exists=True,
        )
        self.total = settings.trials * len(seeds)
        self._waiting: list[Arm] = []
        for trial in self._study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):  # the sweep was stopped in it
            self._add(trial.number, trial.params)

    @property
    def study(self) -> Any:
        """Optuna's study, with its best trial."""
        return self._study

    def take(self) -> Arm | None:
        if not self._waiting and len(self._study.trials) < self._settings.trials:
            number = len(self._study.trials)
            self._study.sampler = _sampler(self._optuna, self._settings, number)
            trial = self._study.ask(self._space)
            self._add(trial.number, trial.params)
        return self._waiting.pop(0) if self._waiting else None

    def ended(self, arm: Arm, state: str) -> None:
        trial = self._record.runs[arm.number]["trial"]
        runs = [(i, run) for i, run in enumerate(self._record.runs) if run.get("trial") == trial]
        if any(run["state"] in ("waiting", "running", "interrupted") for _, run in runs):
            return
        values = [self._value(number) for number, _ in runs]
        states = self._optuna.trial.TrialState
        if any(run["state"] == "failed" for _, run in runs) or any(value is None for value in values):
            self._study.tell(trial, state=states.FAIL)
        else:
            self._study.tell(trial, math.fsum(v for v in values if v is not None) / len(values))

    def _add(self, trial: int, parameters: Mapping[str, Any]) -> None:
        """The runs of a trial, those that are done already left out."""
        chosen = [f"{key}={_written(parameters[key])}" for key in self._space]
        known = [i for i, run in enumerate(self._record.runs) if run.get("trial") == trial]
        for place, seed in enumerate(self._seeds):
            names = named([*chosen, *(seed if len(self._seeds) > 1 else [])])
            number = known[place] if place < len(known) else self._record.add(names, trial=trial)
            if self._record.runs[number]["state"] != "done":
                self._record.update(number, state="waiting")
                self._waiting.append(Arm(number, [*self._fixed, *chosen, *seed]))
        if not any(self._record.runs[arm.number].get("trial") == trial for arm in self._waiting):
            self.ended(Arm(known[-1], []), "done")  # all ran; only Optuna did not hear of it

    def _value(self, number: int) -> float | None:
        """The objective of a run, from its record."""
        mine = f"{self._record.id}/{number}"
        found = [record for record in list_runs(self._artifacts) if record.get("sweep") == mine]
        return (found[-1].get("objective") or {}).get("value") if found else None


def _written(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _sampler(optuna: Any, settings: Optuna, number: int) -> Any:
    """The sampler of one trial. Made anew for each, so that a search that goes on doesn't draw the same again."""
    from components.rng import derive

    seed = derive(settings.seed, "optuna", number) % 2**31
    samplers = optuna.samplers
    match settings.sampler:
        case "random":
            return samplers.RandomSampler(seed=seed)
        case "cmaes":
            return samplers.CmaEsSampler(seed=seed, n_startup_trials=settings.startup)
        case "gp":
            return samplers.GPSampler(seed=seed, n_startup_trials=settings.startup)
        case _:
            return samplers.TPESampler(
                seed=seed, n_startup_trials=settings.startup, multivariate=True, constant_liar=True
            )


def _settings(request: Request) -> Optuna:
    from flows.build import build
    from flows.errors import errors
    from flows.preflight import check_node

    node, allow = dict(request.search or {}), ("flows.sweep", *request.allow)
    if problems := errors(check_node("configuration", "sweep.search", node, allow)[0]):
        raise BadInput(problems)
    try:
        return build(node, allow=allow)
    except ValueError as error:
        problem, _, fix = str(error).partition(". Fix: ")
        raise BadInput(Problem("configuration", "", problem, fix=fix or "correct that setting")) from error


def _optuna() -> Any:
    try:
        import optuna  # optional, and a second of CPU
    except ImportError as error:
        fix = "pip install 'r1flow[optuna]'"
        raise BadInput(Problem("configuration", "sweep.search", f"needs a package: {error}", fix=fix)) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
