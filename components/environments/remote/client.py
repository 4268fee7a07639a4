"""An environment that lives behind `EnvironmentServer`, in another process or on another machine."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Mapping
from functools import cache
from string import Template
from typing import Any

from components.environments.protocol import Step
from components.environments.remote.line import EpisodeFailed, Line, Unreachable, no_server, token_problem, url_problem
from components.environments.remote.wire import TOKEN_VARIABLE, is_about, step_from_json
from components.types import Task

_MARGIN_S = 15.0  # that an answer may take beyond the environment's own deadline
_LOOK_S = 2.0  # for an answer before the run
_KNOWN = 4096  # tasks whose schemas are remembered


class RemoteEnvironment:
    """`Environment` whose episodes are a server's: ``r1flow envs serve environment=shell``.

    Rollouts are those of the same environment in this process, bit for bit. A request that got no answer is sent again:
    episodes have ids and steps have numbers, so that nothing is done twice. While the server has no room for another
    episode, a step waits for one.

    The key of a stage has this component's settings, not those of what is served: give ``digest``, which the server
    prints, and another environment at the same address is an error.

    Args:
        url: as the server prints it.
        digest: of the environment that must be served there; None takes any.
        token_env: environment variable that holds the server's token. Read when asking, never stored.
        retry_seconds: for how long a server that does not answer is asked again.

    Raises:
        ValueError: settings that make no sense; when first asked, another environment than ``digest`` names, a server
            of something else, or a token that cannot be sent.
        Unreachable: when first asked, nobody answers there.
        EpisodeFailed: when first asked, the server wants another token.
    """

    asynchronous = True

    def __init__(
        self, *, url: str, digest: str | None = None, token_env: str = TOKEN_VARIABLE, retry_seconds: float = 30.0
    ) -> None:
        if problems := _problems(url, retry_seconds):
            raise ValueError(f"remote environment: {'; '.join(problems)}")
        self.url, self.digest, self.token_env, self.retry_seconds = url.rstrip("/"), digest, token_env, retry_seconds
        self._lock = threading.Lock()
        self._about: dict[str, Any] | None = None
        self._schemas: dict[str, dict[str, Any]] = {}

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(self.about["stop"])

    @property
    def wrapper(self) -> tuple[str, str]:
        before, after = self.about["wrapper"]
        return before, after

    @property
    def chat(self) -> bool:
        return self.about["chat"]

    @property
    def speaker(self) -> str:
        return self.about["speaker"]

    @property
    def inspects(self) -> bool:
        return self.about["inspects"]

    @property
    def overflow(self) -> str:
        return self.about["overflow"]

    @property
    def reserve(self) -> int:
        return self.about["reserve"]

    @property
    def seconds(self) -> float:
        """Longer than the server's, which says what ran late."""
        return self.about["seconds"] + self.retry_seconds + 2 * _MARGIN_S

    @property
    def about(self) -> dict[str, Any]:
        """What the server says of its environment; asked once."""
        with self._lock:
            if self._about is None:
                self._about = self.look(_MARGIN_S)
        return self._about

    def look(self, seconds: float) -> dict[str, Any]:
        """What the server says of its environment now; ``seconds`` for its answer."""
        found = Line(self, seconds).ask("GET", "/")
        if not is_about(found):
            raise no_server(self.url, "it answers in another form")
        if self.digest is not None and found["digest"] != self.digest:
            raise ValueError(
                f"the environment at {self.url} is {found['digest']}, not {self.digest}. Fix: serve the one that is "
                "meant, or give its digest"
            )
        return found

    def reset(self, task: Task | None) -> RemoteEpisode:
        return RemoteEpisode(self, task)

    def schemas(self, task: Task | None = None) -> list[dict[str, Any]]:
        return self._of_task(task)["schemas"]

    def manual(self, task: Task | None = None) -> str:
        return self._of_task(task)["manual"]

    def _of_task(self, task: Task | None) -> dict[str, Any]:
        row = json.dumps(None if task is None else task.to_json())
        if row not in self._schemas:
            if len(self._schemas) >= _KNOWN:
                self._schemas.clear()
            self._schemas[row] = Line(self, _MARGIN_S).ask("POST", "/schemas", {"task": json.loads(row)})
        return self._schemas[row]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


class RemoteEpisode:
    """One episode, with a connection of its own: the server ends it some time after that is gone."""

    def __init__(self, environment: RemoteEnvironment, task: Task | None) -> None:
        self._environment = environment
        self._path, self._steps = f"/episodes/{uuid.uuid4().hex}", 0
        self._line = Line(environment, environment.about["seconds"] + _MARGIN_S)
        self._line.ask("PUT", self._path, {"task": None if task is None else task.to_json()})

    def step(self, text: str) -> Step:
        row = self._line.ask("POST", f"{self._path}/steps/{self._steps}", {"text": text})
        self._steps += 1
        return step_from_json(row)

    def state(self) -> dict[str, Any]:
        return self._line.ask("GET", f"{self._path}/state")["state"]

    def close(self) -> None:
        """End it there; also while a step has no answer yet."""
        Line(self._environment, _MARGIN_S, patient=False).ask("DELETE", self._path)
        self._line.close()


def remote_environment_check(settings: Mapping[str, Any]) -> list[str]:
    """What preflight can say of the settings, and of who answers there now, which stops nothing."""
    url, name = settings["url"], str(settings.get("token_env", TOKEN_VARIABLE))
    hidden = not isinstance(url, str)  # {_env_: "$NAME"}: it looked like a secret, as with a password in it
    if hidden:
        url = Template(url["_env_"]).safe_substitute(os.environ)
    problems = _problems(url, settings.get("retry_seconds", 30.0), "***" if hidden else "")
    if problem := token_problem(name):
        problems.append(problem)
    if not (problems or hidden) and (told := _met(url, settings.get("digest"), name)):
        problems.append(f"url: warning: {told}")
    return problems


def _problems(url: str, retry_seconds: float, shown: str = "") -> list[str]:
    problems = [problem] if (problem := url_problem(url, shown)) else []
    if retry_seconds < 0:
        problems.append(f"retry_seconds: must not be negative (got {retry_seconds}). Fix: 30 is usual")
    return problems


@cache
def _met(url: str, digest: str | None, name: str) -> str | None:
    """What keeps an episode there from being begun."""
    try:
        RemoteEnvironment(url=url, digest=digest, token_env=name, retry_seconds=0.0).look(_LOOK_S)
    except (Unreachable, TimeoutError, EpisodeFailed, ValueError) as error:
        return str(error)
    return None
