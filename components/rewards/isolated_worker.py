"""The other side of `Isolated`: a process that holds one term and scores what it is sent, until it is killed.

Pickles come in from the parent, which made them; what goes back is JSON, one line per message:
``{"ready": true}`` once the term is there, ``{"broken": why}`` if it cannot be had, then ``{"scores": […]}`` per job.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO, TextIO

from components.rewards.outcome import as_score, as_scores, raised
from components.rng import derive
from components.types import Rollout, Score, Task

_F_SETSIG = 10  # Linux; absent from the fcntl module


def main(lifeline: int) -> None:
    """Serve until standard input ends. ``lifeline``: read end of a pipe that closes when the parent is gone."""
    _die_with_parent(lifeline)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what the term prints goes to the log of the process that asked
    try:
        term = pickle.loads(pickle.load(requests))
    except BaseException:
        _say(answers, {"broken": f"cannot be made in its own process: it {raised().reason}"})
        return
    _say(answers, {"ready": True})
    with contextlib.suppress(EOFError):
        _serve(term, requests, answers)


def _serve(term: Any, requests: BinaryIO, answers: TextIO) -> None:
    while True:
        scores = score(term, pickle.load(requests))
        _say(answers, {"scores": [[s.total, dict(s.terms), s.outcome, s.reason] for s in scores]})


def score(term: Any, pairs: Sequence[tuple[Task, Rollout]]) -> list[Score]:
    """One call of the term – one rollout, or all of them for a term with ``batch`` – under a seed of its own."""
    _seed(derive("reward", *(part for task, rollout in pairs for part in (task.id, rollout.response))))
    try:
        if hasattr(term, "batch"):
            return as_scores(term.batch(pairs), len(pairs))
        return [as_score(term(task, rollout)) for task, rollout in pairs]
    except BaseException:  # SystemExit as well: the term does not decide when its process ends
        return [raised()] * len(pairs)


def _seed(seed: int) -> None:
    """A term that draws from a global stream gives the same in whichever process it runs, and after whichever call."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message, allow_nan=False) + "\n")
    answers.flush()


def _die_with_parent(lifeline: int) -> None:
    """End this process group once the parent is gone: by a thread, and by the kernel where it can.

    The thread alone would wait for a C function that keeps the interpreter to itself; the kernel does not.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
