"""A term in killable processes of its own: whatever it does, the run goes on or stops as the policy says."""

from __future__ import annotations

import selectors
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from components.rewards.mix_settings import figure_problems
from components.rewards.outcome import failed, name_of
from components.rewards.worker import Job, Worker, send_form
from components.types import Rollout, Score, Task

GIVE_UP = 8  # a term that loses this many rollouts of a call, the first ones, loses the rest too


class Isolated:
    """Runs a term – ``(task, rollout) -> float | Score``, or an object with ``batch(pairs)`` – in worker processes.

    A call that raises, ends or freezes its process, or returns no finite number fails for its own rollout alone, with
    the cause. The deadline starts when the call does, not while it waits for a worker, and counts the process's own
    time (`components.rewards.worker.Clock`), so that neither the number of workers nor the machine's load decides what
    is scored. Every call has a seed of its own for the global random streams. An object is copied into each worker
    and keeps its state there.

    Args:
        term: importable by name there: a function or object of a module, not of a script, no lambda.
        seconds: deadline of one call; for ``batch``, times the number of rollouts.
        retries: further attempts after a failure.
        workers: processes; started when first needed.

    Raises:
        ValueError: figures out of range, or a term that cannot be sent to another process.
    """

    def __init__(self, *, term: Any, seconds: float = 10.0, retries: int = 1, workers: int = 2) -> None:
        if problems := figure_problems({"seconds": seconds, "retries": retries}):
            raise ValueError(f"reward isolated.{problems[0]}")
        if workers < 1:
            raise ValueError(f"reward isolated.workers: must be at least 1 (got {workers})")
        self.name = name_of(term)
        self.term, self.seconds, self.retries, self.workers = term, seconds, retries, workers
        try:
            self._sent = send_form(term)
        except ValueError as error:
            raise ValueError(
                f"reward {self.name} cannot run in a process of its own: {error}. "
                "Fix: put it at the top level of a module, or set reward.isolate=false"
            ) from error
        self._crew: list[Worker] = []
        self._closed = weakref.finalize(self, _dismiss, self._crew)

    def batch(self, pairs: Sequence[tuple[Task, Rollout]]) -> list[Score]:
        """One outcome per rollout, in order."""
        jobs: list[Job] = [pairs] if hasattr(self.term, "batch") else [[pair] for pair in pairs]
        return [score for scores in _Call(self, jobs if pairs else []).run() for score in scores]

    def close(self) -> None:
        """Kill the workers; the next call starts new ones."""
        _dismiss(self._crew)

    def idle(self, busy: dict[Worker, int]) -> Worker | None:
        """A worker without a job, a new one if there may be more; None if all are busy."""
        for worker in self._crew:
            if worker not in busy:
                return worker
        if len(self._crew) >= self.workers:
            return None
        self._crew.append(Worker(self._sent, self.seconds))
        return self._crew[-1]

    def lose(self, worker: Worker) -> None:
        worker.kill()
        self._crew.remove(worker)


class _Call:
    """One call of `Isolated.batch`: jobs go to workers in order, a failed one again before the next."""

    def __init__(self, owner: Isolated, jobs: Sequence[Job]) -> None:
        self.owner, self.jobs = owner, jobs
        self.waiting = list(range(len(jobs)))[::-1]
        self.tries = [0] * len(jobs)
        self.done: dict[int, list[Score]] = {}
        self.lost: set[int] = set()
        self.busy: dict[Worker, int] = {}

    def run(self) -> list[list[Score]]:
        try:
            while self.waiting or self.busy:
                self._hand_out()
                self._collect()
                if self._hopeless():
                    break
        finally:  # on Ctrl-C as well: a worker with half a job is of no use to the next call
            for worker in list(self.busy):
                self.owner.lose(worker)
        return [self.done[i] for i in range(len(self.jobs))]

    def _hand_out(self) -> None:
        while self.waiting and (worker := self.owner.idle(self.busy)) is not None:
            self.busy[worker] = self.waiting.pop()
            worker.give(self.jobs[self.busy[worker]])

    def _collect(self) -> None:
        patience = max(0.0, min(worker.remaining() for worker in self.busy))
        with selectors.DefaultSelector() as selector:
            for worker in self.busy:
                selector.register(worker, selectors.EVENT_READ)
            readable = {key.fileobj for key, _ in selector.select(patience)}
        for worker in list(self.busy):
            found = worker.look() if worker in readable else None
            if isinstance(found, list):
                self._take(self.busy.pop(worker), found)
            elif found is not None or worker.remaining() <= 0:
                self._take(self.busy.pop(worker), found or worker.overdue(), lost=True)
                self.owner.lose(worker)

    def _take(self, job: int, found: list[Score] | str, *, lost: bool = False) -> None:
        scores = [failed(found)] * len(self.jobs[job]) if isinstance(found, str) else found
        if any(score.outcome == "failed" for score in scores) and self.tries[job] < self.owner.retries:
            self.tries[job] += 1
            self.waiting.append(job)
            return
        self.done[job] = scores
        self.lost |= {job} if lost else set()

    def _hopeless(self) -> bool:
        """Whether the first jobs all lost their process; then the others are not tried, whatever was tried of them.

        Decided by the first jobs alone, so that it does not depend on how many others are under way.
        """
        if len(self.jobs) <= GIVE_UP or not set(range(GIVE_UP)) <= self.lost:
            return False
        first = self.done[0][0].reason
        why = f"was not tried: it failed on the first {GIVE_UP} rollouts of the step, on the first one as it {first}"
        self.done |= {i: [failed(why)] * len(self.jobs[i]) for i in range(GIVE_UP, len(self.jobs))}
        return True


def isolated_check(settings: Mapping[str, Any]) -> list[str]:
    """What preflight can say of the settings."""
    return figure_problems(settings)


def _dismiss(crew: list[Worker]) -> None:
    for worker in crew:
        worker.kill()
    crew.clear()
