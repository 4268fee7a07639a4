"""The open episodes of an environment server: each step done once, each episode with its deadline, holders and end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any

from components.environments.remote.wire import step_to_json
from components.types import Task

_log = logging.getLogger(__name__)
_LOOK_S = 0.5  # between looks at whether an episode was closed


class Refused(Exception):
    """A request that is not answered; ``kind`` is "full", "unknown" or "order"."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(eq=False)
class _Open:
    """One episode. ``steps``: how many were begun; ``last``: the answer to the last of them."""

    begun: Future[Any]
    steps: int = 0
    last: Future[Any] | None = None
    left: Future[Any] | None = None
    holders: set[object] = field(default_factory=set)
    seen: float = field(default_factory=time.monotonic)  # last request, or since when nobody holds it
    closed: threading.Event = field(default_factory=threading.Event)


class Hosting:
    """Episodes of one environment, by id. Usable from many threads.

    Work runs in a thread of its own, so that nothing waits for one that hangs: past the environment's ``seconds`` its
    episode is closed.

    Args:
        limit: episodes open at one time.
        grace: seconds after which an episode is closed that no connection holds any more: its client is gone.
        idle: seconds after which an episode is closed whose client is there and asks nothing.
    """

    def __init__(self, environment: Any, *, limit: int = 1024, grace: float = 30.0, idle: float = 3600.0) -> None:
        if not (limit >= 1 and grace > 0 and idle > 0):
            raise ValueError(f"limit, grace and idle must be positive, got {limit}, {grace} and {idle}")
        self.environment, self.limit, self.grace, self.idle = environment, limit, grace, idle
        self.seconds = float(getattr(environment, "seconds", 60.0))
        self._lock = threading.Lock()
        self._episodes: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def begin(self, name: str, task: Task | None, holder: object) -> None:
        """Open an episode; nothing if it is open. Raises Refused, TimeoutError, and what the environment raises."""
        with self._lock:
            episode = self._episodes.get(name)
            if episode is None:
                if len(self._episodes) >= self.limit:
                    raise Refused("full", f"{self.limit} episodes are open, no more are taken")
                episode = self._episodes[name] = _Open(_started(lambda: self.environment.reset(task)))
            self._hold(episode, holder)
        try:
            self._wait(name, episode, episode.begun)
        except BaseException:
            self.close(name)
            raise

    def step(self, name: str, number: int, text: str, holder: object) -> dict[str, Any]:
        """The answer to an episode's step of this number, from 0. Raises as `begin`."""
        with self._lock:
            episode = self._found(name, holder)
            if number == episode.steps and (episode.last is None or episode.last.done()):
                episode.steps += 1
                episode.last = _started(lambda: step_to_json(episode.begun.result().step(text)))
            if number != episode.steps - 1 or episode.last is None:
                raise Refused("order", f"step {number} does not follow step {episode.steps - 1}")
            work = episode.last
        return self._wait(name, episode, work)

    def state(self, name: str, holder: object) -> dict[str, Any]:
        """What an episode left behind, asked once. Raises as `begin`."""
        with self._lock:
            episode = self._found(name, holder)
            if episode.left is None:
                episode.left = _started(lambda: dict(episode.begun.result().state()))
            work = episode.left
        return self._wait(name, episode, work)

    def close(self, name: str) -> None:
        """End an episode; nothing if there is none."""
        with self._lock:
            episode = self._episodes.pop(name, None)
        if episode is None:
            return
        episode.closed.set()
        episode.begun.add_done_callback(_close)  # now, or when it has begun at last

    def release(self, holder: object) -> None:
        """A connection is gone: episodes that no other one holds end after the grace period."""
        with self._lock:
            for episode in self._episodes.values():
                if holder in episode.holders:
                    episode.holders.discard(holder)
                    episode.seen = time.monotonic()

    def sweep(self) -> int:
        """Close episodes whose client is gone or idle; how many."""
        now = time.monotonic()
        with self._lock:
            old = [n for n, e in self._episodes.items() if now - e.seen > (self.idle if e.holders else self.grace)]
        for name in old:
            _log.warning("episode %s: its client is gone or idle; closed", name)
            self.close(name)
        return len(old)

    def close_all(self) -> None:
        for name in list(self._episodes):
            self.close(name)

    def _hold(self, episode: _Open, holder: object) -> None:
        episode.holders.add(holder)
        episode.seen = time.monotonic()

    def _found(self, name: str, holder: object) -> _Open:
        if (episode := self._episodes.get(name)) is None:
            raise Refused("unknown", "no such episode: it was closed, or the server was started anew since")
        self._hold(episode, holder)
        return episode

    def _wait(self, name: str, episode: _Open, work: Future[Any]) -> Any:
        deadline = time.monotonic() + self.seconds
        while not wait_for([work], max(0.0, min(_LOOK_S, deadline - time.monotonic()))).done:
            if episode.closed.is_set():
                raise Refused("unknown", "the episode was closed meanwhile")
            if time.monotonic() >= deadline:
                self.close(name)
                raise TimeoutError(f"no answer within {self.seconds:g} s")
        return work.result()


def _started(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whatever it is, it concerns this episode only
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _close(begun: Future[Any]) -> None:
    if begun.exception() is None and (close := getattr(begun.result(), "close", None)) is not None:

        def run() -> None:
            with contextlib.suppress(Exception):
                close()

        threading.Thread(target=run, daemon=True).start()
