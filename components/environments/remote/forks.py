"""Episodes in forked processes: one that hangs, floods or ends its interpreter ends its episode only."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from components.environments.protocol import Step
from components.environments.remote.wire import MOST, step_from_json, step_to_json
from components.environments.tools.host import Broken
from components.environments.tools.process import STARTUP_S, Conversation
from components.environments.tools.process_worker import fork_for_each
from components.types import Task


class Forked:
    """`Environment` with a process per episode. To be made in a process that has one thread, which it forks.

    The environment's own process is the first of these forks: what it builds when an episode begins, every episode
    builds anew; what it had built before, they share.

    Args:
        memory_mib: address space per episode; 0: as much as there is.
    """

    asynchronous = True

    def __init__(self, environment: Any, *, memory_mib: int = 0) -> None:
        self._environment = environment
        self.seconds = float(getattr(environment, "seconds", 60.0))
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._control.close()
                with contextlib.suppress(KeyboardInterrupt):
                    fork_for_each(theirs, self._answer, memory_mib)
                status = 0
            finally:
                os._exit(status)
        theirs.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._environment, name)

    def reset(self, task: Task | None) -> ForkedEpisode:
        mine, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                socket.send_fds(self._control, [b"E"], [theirs.fileno()])
            except OSError as error:
                raise Broken(f"the process that episodes are forked from ended ({error})") from None
        return ForkedEpisode(mine, task, self)

    def close(self) -> None:
        """End all episodes."""
        self._control.close()

    def _answer(self, request: Mapping[str, Any], episode: Any) -> tuple[Any, Mapping[str, Any]]:
        if "hello" in request:
            return None, {"pid": os.getpid()}
        if "task" in request:
            task = None if request["task"] is None else Task.from_json(request["task"])
            return self._environment.reset(task), {}
        if "state" in request:
            return episode, {"state": dict(episode.state())}
        return episode, step_to_json(episode.step(request["text"]))


class ForkedEpisode:
    """One episode's process."""

    def __init__(self, connection: socket.socket, task: Task | None, forked: Forked) -> None:
        self._forked = forked  # whose end would end this
        self._seconds = forked.seconds
        self._process = Conversation(connection, MOST)
        self._process.ask({"hello": True}, STARTUP_S)
        self._process.ask({"task": None if task is None else task.to_json()}, self._seconds)

    def step(self, text: str) -> Step:
        return step_from_json(self._process.ask({"text": text}, self._seconds))

    def state(self) -> dict[str, Any]:
        return self._process.ask({"state": True}, self._seconds)["state"]

    def close(self) -> None:
        self._process.close()
