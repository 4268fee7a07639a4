"""Sampling by turns, for engines that only write: from a prefix to an end token, a stop or the limit.

The environment acts between the turns; all sequences that are still running write their next turn together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from components.rollout.handover import Handover, Turn
from components.rollout.protocol import Completion, Request
from components.rollout.sampling import Sampling
from components.types import Finish, Task


@dataclass(frozen=True, slots=True)
class Order:
    """One turn to be written.

    Attributes:
        prefix: prompt and everything since.
        seed: of this turn.
        limit: tokens at most.
        stop_ids, stop_texts: end the turn with the token that completes them, besides the end tokens.
    """

    prefix: tuple[int, ...]
    seed: int
    limit: int
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...]


Write = Callable[[Sequence[Order]], Sequence[tuple[Sequence[int], Sequence[float]]]]
"""Orders → (tokens, their log-probabilities) each; at least one token."""


@dataclass
class _Sequence:
    prompt: tuple[int, ...]
    seed: int
    task: Task | None
    turn: Turn = field(default_factory=Turn)
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    finish: Finish | None = None


def sample(
    write: Write,
    requests: Sequence[Request],
    sampling: Sampling,
    handover: Handover | None,
    ends: Sequence[int],
) -> list[list[Completion]]:
    """Completions in the order of the requests; see `Engine.generate`."""
    groups = [[_Sequence(r.tokens, seed, r.task) for seed in r.seeds] for r in requests]
    running = [sequence for group in groups for sequence in group]
    exact = tuple(sorted(handover.exact)) if handover else ()
    spelled = handover.spelled if handover else ()
    while running:
        orders = [
            # A turn's seed is its own: an engine that counts from the start of a request would repeat itself.
            Order(
                (*s.prompt, *s.tokens),
                (s.seed + 0x9E3779B1 * len(s.tokens)) % (1 << 63),
                sampling.max_new_tokens - len(s.tokens),
                exact,
                spelled,
            )
            for s in running
        ]
        for sequence, (tokens, logp) in zip(running, write(orders), strict=True):
            _take(sequence, tokens, logp, sampling.max_new_tokens, handover, ends)
        running = [sequence for sequence in running if sequence.finish is None]
    if handover is not None:
        for group in groups:
            for sequence in group:
                handover.end_now(sequence.task, sequence.turn)
    return [[_completion(sequence) for sequence in group] for group in groups]


def _take(
    s: _Sequence,
    tokens: Sequence[int],
    logp: Sequence[float],
    limit: int,
    handover: Handover | None,
    ends: Sequence[int],
) -> None:
    """Append a turn; let the environment act, if it is its turn; note how the sequence ended, if it did."""
    if not tokens or len(tokens) != len(logp):
        raise RuntimeError(f"the engine wrote {len(tokens)} tokens with {len(logp)} log-probabilities")
    s.tokens += tokens
    s.mask += [True] * len(tokens)
    s.logp += logp
    if handover is not None and handover.stops(s.tokens[s.turn.begin :]):
        added, done, answered = handover.act(s.task, s.turn, s.tokens, limit - len(s.tokens))
        if s.turn.error:
            s.finish = s.turn.finish
            return
        added = added[: limit - len(s.tokens)]
        s.tokens += added
        s.mask += [False] * len(added)
        s.logp += [0.0] * len(added)
        if done:
            s.finish = "stop"
        elif answered:
            s.finish = "length" if len(s.tokens) >= limit else None
        else:
            s.finish = _end(s, tokens, limit, ends)
        return
    s.finish = _end(s, tokens, limit, ends)


def _end(s: _Sequence, tokens: Sequence[int], limit: int, ends: Sequence[int]) -> Finish | None:
    return "stop" if tokens[-1] in ends else "length" if len(s.tokens) >= limit else None


def _completion(s: _Sequence) -> Completion:
    assert s.finish is not None
    turn = s.turn
    return Completion(
        tuple(s.tokens),
        tuple(s.mask),
        tuple(s.logp),
        turn.finish or s.finish,
        dict(turn.info),
        turn.error,
        tuple(turn.rewards),
        turn.state,
    )
