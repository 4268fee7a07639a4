"""The decoding loop of the torch engine: rows enter, choose or are given a token per step, finish and leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from components.rollout.handover import Handover, Turn
from components.rollout.protocol import Completion, Request
from components.rollout.sampling import Sampling, choose, mix, uniforms
from components.types import Finish

_RUNNING, _STOP, _LENGTH, _FAILED = range(4)
_FINISH = cast("tuple[Finish, ...]", ("length", "stop", "length", "failed"))
_FEWEST_ROWS = 8  # fewer rows take other matrix kernels on CPU, whose rounding differs


@dataclass(frozen=True)
class _Job:
    """Samples of one prompt that are decoded together: sequences ``first`` … ``first + count - 1``."""

    request: Request
    first: int
    count: int


class Run:
    """One call of `TorchEngine.generate`.

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

    def results(self) -> list[list[Completion]]:
        """Decode to the end; completions in the order of the requests."""
        while self._refill():
            self._advance(self.cache.step(self.token, self.depth))
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
        """Drop finished rows and admit waiting prompts where that pays; False when nothing is left to do."""
        if not self.changed:
            return True
        self.changed = False
        free = self.engine.max_batch - self.living
        admitted = []
        if self.living == 0 or (self.cache.mergeable and free >= self.engine.max_batch // 4):
            while self.waiting and self.waiting[0].count <= free:
                admitted.append(self.waiting.popleft())
                free -= admitted[-1].count
        if not admitted and self.living == 0:
            return False
        if admitted or (self.living <= self.engine.compact_at * len(self.alive) and len(self.alive) > _FEWEST_ROWS):
            self._rebuild(admitted)
        return True

    def _rebuild(self, admitted: list[_Job]) -> None:
        keep = self.alive.nonzero()[:, 0]
        copies = [job.count for job in admitted]
        sequence = [s for job in admitted for s in range(job.first, job.first + job.count)]
        missing = max(0, _FEWEST_ROWS - len(keep) - len(sequence))
        if missing and admitted:
            copies[-1] += missing
            sequence += [self.total] * missing
        elif missing:
            keep = torch.cat([keep, (~self.alive).nonzero()[:missing, 0]])
        if not admitted:
            keep = _fill_holes(keep)
        self.cache.rebuild(keep, [job.request.tokens[:-1] for job in admitted], copies)
        repeats = torch.tensor(copies, dtype=torch.long, device=self.device)
        prompts = [job.request.tokens for job in admitted]
        last = torch.tensor([p[-1] for p in prompts], dtype=torch.long, device=self.device)
        depth = torch.tensor([len(p) - 1 for p in prompts], dtype=torch.long, device=self.device)
        added = torch.tensor(sequence, dtype=torch.long, device=self.device)
        self.token = torch.cat([self.token[keep], last.repeat_interleave(repeats)])
        self.depth = torch.cat([self.depth[keep], depth.repeat_interleave(repeats)])
        self.sequence = torch.cat([self.sequence[keep], added])
        self.written = torch.cat([self.written[keep], torch.zeros_like(added)])
        self.alive = self.sequence != self.total
        self.living = int(self.alive.sum())
        self.longest = int(self.written.max())

    def _advance(self, logits: Tensor) -> None:
        """Choose or force one token per row and record it."""
        row, at = self.sequence, self.written
        token, logp = choose(logits, uniforms(self.key[row], at), self.sampling)
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
            code = torch.tensor([self._hand_over(r) for r in rows.tolist()], device=self.device)
            rows, code = rows[code != _RUNNING], code[code != _RUNNING]
        ended = self.sequence[rows]
        self.finished[ended], self.length[ended] = code, self.written[rows]
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
        added, done, answered = self.handover.act(self.tasks[sequence], turn, tokens)
        if turn.error:
            return _FAILED
        room = self.sampling.max_new_tokens - written
        if done:
            self._append(row, added[:room])
            return _STOP
        if not answered:
            return otherwise
        self._enqueue(sequence, added[:room])
        return _LENGTH if full else _RUNNING

    def _append(self, row: int, added: list[int]) -> None:
        """Write an observation that ends the episode: nothing is computed on it any more."""
        sequence, written = int(self.sequence[row]), int(self.written[row])
        while written + len(added) > self.tokens.shape[1]:
            self._widen()
        self.tokens[sequence, written : written + len(added)] = torch.tensor(added, dtype=torch.long)
        self.acted[sequence, written : written + len(added)] = False
        self.written[row] += len(added)

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
                    finish=_FINISH[finished[i]],
                    info=dict(turn.info),
                    error=turn.error,
                )
            )
        grouped = iter(completions)
        return [[next(grouped) for _ in request.seeds] for request in self.requests]

    def _lookup(self, ids: Any, size: int) -> Tensor:
        table = torch.zeros(size, dtype=torch.bool)
        table[[i for i in ids if i < size]] = True
        return table.to(self.device)

    def _new(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.long, device=self.device)


def _fill_holes(keep: Tensor) -> Tensor:
    """The same rows in an order in which as many as can be stay where they are: the last ones fill the gaps."""
    places = torch.arange(len(keep), device=keep.device)
    stays = keep < len(keep)
    holes = torch.ones_like(places, dtype=torch.bool).index_fill_(0, keep[stays], False)
    return places.masked_scatter(holes, keep[~stays])
