"""The decoding loop of the torch engine: rows enter, choose or are given a token per step, finish and leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from components.rollout.episodes import Errands
from components.rollout.handover import Handover, Turn
from components.rollout.protocol import Completion, Request
from components.rollout.sampling import Sampling, draw, mix
from components.types import Finish

_RUNNING, _STOP, _LENGTH, _FAILED, _WAITING = range(5)
_FINISH = cast("tuple[Finish, ...]", ("length", "stop", "length", "failed"))
_FEWEST_ROWS = 8  # fewer rows take other matrix kernels on CPU, whose rounding differs
_PATIENCE = 4  # steps that an answered sequence waits for others, so that they come back together
_PARKED = 2  # times max_batch: sequences that may wait for their environments at one time


@dataclass(frozen=True)
class _Job:
    """Samples of one prompt that are decoded together: sequences ``first`` … ``first + count - 1``."""

    request: Request
    first: int
    count: int


@dataclass(frozen=True)
class _Parked:
    """A sequence whose environment is at work, out of the batch with its keys and values."""

    token: int
    depth: int
    written: int
    otherwise: int  # how it stands if the environment has nothing to say
    block: Any


class Run:
    """One call of `TorchEngine.generate`.

    A sequence whose environment takes its time is parked: it leaves the batch with its keys and values and comes back
    with the answer. That shifts it to other columns of the cache, which changes none of its bits. Where the cache
    cannot do that, the batch waits.

    Tensors indexed by sequence (``tokens``, ``logp``, ``acted``, ``finished``, ``length``) hold the result; the last
    row is a bin for what finished rows go on computing until they are dropped. Tensors indexed by row (``sequence``,
    ``alive``, ``written``, ``depth``, ``token``) describe the batch.
    """

    def __init__(self, engine: Any, requests: Sequence[Request], sampling: Sampling, handover: Handover | None) -> None:
        self.engine, self.requests, self.sampling, self.handover = engine, requests, sampling, handover
        self.cache = engine.decoder.new_cache()
        self.device = engine.decoder.head.device
        self.total = total = sum(len(r.seeds) for r in requests)
        self.waiting = deque(self._jobs())
        seeds = [seed for r in requests for seed in r.seeds]
        self.key = mix(torch.tensor([*seeds, 0], dtype=torch.long, device=self.device))
        width = min(sampling.max_new_tokens, 64)
        self.tokens = self._new(total + 1, width)
        self.logp = torch.zeros(total + 1, width, device=self.device)
        self.acted = torch.ones(total + 1, width, dtype=torch.bool, device=self.device)
        self.finished, self.length = self._new(total + 1), self._new(total + 1)
        self.sequence, self.written, self.depth, self.token = (self._new(0) for _ in range(4))
        self.alive = torch.zeros(0, dtype=torch.bool, device=self.device)
        self.living, self.longest, self.changed = 0, 0, True
        self.queue, self.queued, self.fed = self._new(total + 1, 0), self._new(total + 1), self._new(total + 1)
        self.forcing = False
        self.turns: dict[int, Turn] = {}
        self.tasks = [request.task for request in requests for _ in request.seeds]
        vocabulary = engine.decoder.head.shape[0]
        self.is_end = self._lookup(engine.eos_ids, vocabulary)
        self.is_stop = self._lookup(handover.candidates if handover else (), vocabulary)
        self.is_event = self.is_end | self.is_stop
        self.errands = Errands(handover.seconds) if handover and handover.asynchronous else None
        self.parked: dict[int, _Parked] = {}
        self.ready: list[int] = []  # parked sequences that may go on
        self.waited = 0
        self._stands: dict[int, int] = {}  # how sequences stand that the whole batch waited for

    def results(self) -> list[list[Completion]]:
        """Decode to the end; completions in the order of the requests."""
        try:
            while self._refill():
                self._advance(self.cache.step(self.token, self.depth))
            self._hear(until_all=True)
        finally:  # a stop, or an error of the engine: nobody will finish the others
            if self.handover is not None and (self.errands or self.parked or self.living):
                for turn in self.turns.values():
                    self.handover.abandon(turn)
        return self._completions()

    def _jobs(self) -> list[_Job]:
        """Longest prompts first, so that prompts computed together differ little in length."""
        jobs, first, most = [], 0, self.engine.max_batch
        for request in self.requests:
            count = len(request.seeds)
            jobs += [_Job(request, first + i, min(most, count - i)) for i in range(0, count, most)]
            first += count
        return sorted(jobs, key=lambda job: -len(job.request.tokens))

    def _refill(self) -> bool:
        """Drop finished rows; admit waiting prompts and answered sequences where that pays. False: nothing is left."""
        self._hear()
        if not self.changed and not self.ready:
            return True
        while True:
            back, admitted = self._admissible()
            if back or admitted or self.living or not self.parked:
                break
            self._hear(wait=True)
        if not admitted and not back and self.living == 0:
            return False
        sparse = self.living <= self.engine.compact_at * len(self.alive) and len(self.alive) > _FEWEST_ROWS
        if admitted or back or (self.changed and sparse):
            self._rebuild(admitted, back)
        self.changed = False
        return True

    def _admissible(self) -> tuple[list[int], list[_Job]]:
        """Answered sequences to take back now, and prompts to begin."""
        back: list[int] = []
        free = self.engine.max_batch - self.living
        self.waited += bool(self.ready)
        if self.living == 0 or 8 * len(self.ready) >= self.living or self.waited > _PATIENCE:
            back, self.ready, self.waited = self.ready[:free], self.ready[free:], 0
            free -= len(back)
        admitted = []
        if self.living == 0 or (self.changed and self.cache.mergeable and free >= self.engine.max_batch // 4):
            begun = self.living + len(self.parked)
            while self.waiting and self.waiting[0].count <= free:
                if begun and begun + self.waiting[0].count > (1 + _PARKED) * self.engine.max_batch:
                    break
                admitted.append(self.waiting.popleft())
                free -= admitted[-1].count
                begun += admitted[-1].count
        return back, admitted

    def _rebuild(self, admitted: list[_Job], back: list[int]) -> None:
        keep = self.alive.nonzero()[:, 0]
        copies = [job.count for job in admitted]
        sequence = [s for job in admitted for s in range(job.first, job.first + job.count)]
        prompts = [job.request.tokens for job in admitted]
        missing = max(0, _FEWEST_ROWS - len(keep) - len(back) - len(sequence))
        if missing and admitted:
            copies[-1] += missing
            sequence += [self.total] * missing
        elif missing and back:  # empty rows: old ones would never let go of their columns
            prompts, copies = [(0,)], [missing]
            sequence = [self.total] * missing
        elif missing:
            keep = torch.cat([keep, (~self.alive).nonzero()[:missing, 0]])
        if not admitted:
            keep = _fill_holes(keep)
        parked = [self.parked.pop(s) for s in back]
        self.forcing = self.forcing or bool(parked)
        if parked:
            self.cache.rebuild(keep, [p[:-1] for p in prompts], copies, [p.block for p in parked])
        else:
            self.cache.rebuild(keep, [p[:-1] for p in prompts], copies)
        repeats = torch.tensor([1] * len(parked) + copies, dtype=torch.long, device=self.device)

        def joined(kept: Tensor, own: list[int], new: list[int]) -> Tensor:
            fresh = torch.tensor([*own, *new], dtype=torch.long, device=self.device)
            return torch.cat([kept[keep], fresh.repeat_interleave(repeats)])

        self.token = joined(self.token, [p.token for p in parked], [p[-1] for p in prompts])
        self.depth = joined(self.depth, [p.depth for p in parked], [len(p) - 1 for p in prompts])
        self.written = joined(self.written, [p.written for p in parked], [0] * len(prompts))
        added = torch.tensor([*back, *sequence], dtype=torch.long, device=self.device)
        self.sequence = torch.cat([self.sequence[keep], added])
        self.alive = self.sequence != self.total
        self.living = int(self.alive.sum())
        self.longest = int(self.written.max())

    def _advance(self, logits: Tensor) -> None:
        """Choose or force one token per row and record it."""
        row, at = self.sequence, self.written
        token, logp = draw(logits, self.key[row], at, self.sampling)
        event = self.is_event[token]
        if self.longest == self.tokens.shape[1]:
            self._widen()
        if self.forcing:
            fed = self.fed[row]
            forced = fed < self.queued[row]
            token = torch.where(forced, self.queue[row, fed.clamp(max=self.queue.shape[1] - 1)], token)
            logp = logp.masked_fill(forced, 0.0)
            event &= ~forced
            self.fed[row] = fed + forced
            self.acted[row, at] = ~forced
            self.forcing = bool(forced.any())
        self.tokens[row, at], self.logp[row, at] = token, logp
        self.token = token
        self.written, self.depth, self.longest = at + 1, self.depth + 1, self.longest + 1
        event |= self.written >= self.sampling.max_new_tokens
        event &= self.alive
        if event.any():
            self._settle(event.nonzero()[:, 0])

    def _settle(self, rows: Tensor) -> None:
        """Rows that ended, reached the limit, or wrote a token that may hand over to the environment."""
        code = torch.where(self.is_end[self.token[rows]], _STOP, _LENGTH)
        if self.handover is not None:
            codes = [self._hand_over(r) for r in rows.tolist()]
            if _WAITING in codes and not self.cache.mergeable:
                self._hear(until_all=True)
                codes = [self._stands.pop(int(self.sequence[r]), c) for r, c in zip(rows.tolist(), codes, strict=True)]
            code = torch.tensor(codes, device=self.device)
            rows, code = rows[code != _RUNNING], code[code != _RUNNING]
        ended = self.sequence[rows]
        self.finished[ended], self.length[ended] = code, self.written[rows]
        if self.handover is not None:
            for sequence, how in zip(ended.tolist(), code.tolist(), strict=True):
                if how != _WAITING:
                    self._end(sequence)
        self.alive[rows], self.sequence[rows], self.written[rows] = False, self.total, 0
        self.living -= len(rows)
        self.changed = self.changed or len(rows) > 0

    def _hand_over(self, row: int) -> int:
        """How this row stands after the environment, if it is the environment's turn, has acted."""
        assert self.handover is not None
        sequence, written, token = int(self.sequence[row]), int(self.written[row]), int(self.token[row])
        chosen = bool(self.acted[sequence, written - 1])
        full = written >= self.sampling.max_new_tokens
        ended = chosen and bool(self.is_end[token])
        otherwise = _STOP if ended else _LENGTH if full else _RUNNING
        turn = self.turns.setdefault(sequence, Turn())
        if not (chosen and token in self.handover.candidates):
            return otherwise
        tokens = self.tokens[sequence, :written].tolist()
        if not self.handover.stops(tokens[turn.begin :]):
            return otherwise
        task = self.tasks[sequence]
        if self.errands is None:
            took = self.handover.act(task, turn, tokens, self.sampling.max_new_tokens - written)
            code, length = self._answered(sequence, written, otherwise, *took)
            self.written[row] = length
            return code
        self.errands.send(sequence, partial(self.handover.work, task, turn, self.handover.text(turn, tokens)))
        block = self.cache.take(row) if self.cache.mergeable else row
        self.parked[sequence] = _Parked(token, int(self.depth[row]), written, otherwise, block)
        return _WAITING

    def _answered(
        self, sequence: int, written: int, otherwise: int, added: list[int], done: bool, answered: bool
    ) -> tuple[int, int]:
        """How a sequence stands after its environment's answer, and its tokens then."""
        room = self.sampling.max_new_tokens - written
        if self.turns[sequence].error:
            return _FAILED, written
        if done:
            self._append(sequence, written, added[:room])
            return _STOP, written + len(added[:room])
        if not answered:
            return otherwise, written
        self._enqueue(sequence, added[:room])
        return (_RUNNING if room > 0 else _LENGTH), written

    def _hear(self, *, wait: bool = False, until_all: bool = False) -> None:
        """Take in what environments have answered since, if they work beside the engine.

        Args:
            wait: for one answer at least. until_all: for every answer.
        """
        while self.errands is not None and len(self.errands) > 0:
            back = self.errands.back(wait=wait or until_all)
            for key, result in back:
                assert isinstance(key, int) and self.handover is not None
                if key < 0:  # how an episode ended
                    self.handover.finish(self.tasks[~key], self.turns[~key], result)
                else:
                    self._take_back(key, result)
            if not until_all:
                break

    def _take_back(self, sequence: int, result: Any) -> None:
        """The answer to a parked sequence."""
        assert self.handover is not None
        parked, turn = self.parked[sequence], self.turns[sequence]
        room = self.sampling.max_new_tokens - parked.written
        took = self.handover.take(self.tasks[sequence], turn, parked.written, result, room)
        code, length = self._answered(sequence, parked.written, parked.otherwise, *took)
        if not self.cache.mergeable:
            del self.parked[sequence]
            self._stands[sequence] = code
            self.written[parked.block] = length
        elif code == _RUNNING:
            self.ready.append(sequence)
        else:
            del self.parked[sequence]
            self.finished[sequence], self.length[sequence] = code, length
            self._end(sequence)

    def _end(self, sequence: int) -> None:
        """A sequence is finished: its episode ends."""
        assert self.handover is not None
        turn, task = self.turns.setdefault(sequence, Turn()), self.tasks[sequence]
        if turn.episode is None and not self.handover.ends_episodes:
            return
        if self.errands is None:
            self.handover.end_now(task, turn)
        else:
            self.errands.send(~sequence, partial(self.handover.end, task, turn))

    def _append(self, sequence: int, written: int, added: list[int]) -> None:
        """Write an observation that ends the episode: nothing is computed on it any more."""
        while written + len(added) > self.tokens.shape[1]:
            self._widen()
        self.tokens[sequence, written : written + len(added)] = torch.tensor(added, dtype=torch.long)
        self.acted[sequence, written : written + len(added)] = False

    def _enqueue(self, sequence: int, added: list[int]) -> None:
        if len(added) > self.queue.shape[1]:
            self.queue = torch.cat([self.queue, self._new(self.total + 1, len(added) - self.queue.shape[1])], 1)
        self.queue[sequence, : len(added)] = torch.tensor(added, dtype=torch.long, device=self.device)
        self.queued[sequence], self.fed[sequence] = len(added), 0
        self.forcing = True

    def _widen(self) -> None:
        rows, width = self.tokens.shape
        more = min(width, self.sampling.max_new_tokens - width)
        self.tokens = torch.cat([self.tokens, self._new(rows, more)], 1)
        self.logp = torch.cat([self.logp, self.logp.new_zeros(rows, more)], 1)
        self.acted = torch.cat([self.acted, self.acted.new_ones(rows, more)], 1)

    def _completions(self) -> list[list[Completion]]:
        tokens, logp, acted = self.tokens.tolist(), self.logp.tolist(), self.acted.tolist()
        finished, length = self.finished.tolist(), self.length.tolist()
        completions = []
        for i in range(self.total):
            n, turn = length[i], self.turns.get(i, Turn())
            completions.append(
                Completion(
                    tokens=tuple(tokens[i][:n]),
                    action_mask=tuple(acted[i][:n]),
                    logp=tuple(logp[i][:n]),
                    finish=turn.finish or _FINISH[finished[i]],
                    info=dict(turn.info),
                    error=turn.error,
                    turn_rewards=tuple(turn.rewards),
                    state=turn.state,
                )
            )
        grouped = iter(completions)
        return [[next(grouped) for _ in request.seeds] for request in self.requests]

    def _lookup(self, ids: Any, size: int) -> Tensor:
        table = torch.zeros(size, dtype=torch.bool)
        table[[i for i in ids if 0 <= i < size]] = True
        return table.to(self.device)

    def _new(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.long, device=self.device)


def _fill_holes(keep: Tensor) -> Tensor:
    """The same rows in an order in which as many as can be stay where they are: the last ones fill the gaps."""
    places = torch.arange(len(keep), device=keep.device)
    stays = keep < len(keep)
    holes = torch.ones_like(places, dtype=torch.bool).index_fill_(0, keep[stays], False)
    return places.masked_scatter(holes, keep[~stays])
