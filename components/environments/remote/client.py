"""An environment that lives behind `EnvironmentServer`, in another process or on another machine."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.parse
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

from components.environments.protocol import Step
from components.environments.remote.wire import MOST, TOKEN_VARIABLE, step_from_json
from components.types import Task

_MARGIN_S = 15.0  # that an answer may take beyond the environment's own deadline
_KNOWN = 4096  # tasks whose schemas are remembered
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Unreachable(ConnectionError):
    """The environment server does not answer."""


class EpisodeFailed(RuntimeError):
    """What the environment, or the server that has it, says went wrong with an episode."""


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
        ValueError: settings that make no sense; when first asked, another environment than ``digest`` names.
        Unreachable: when first asked, nobody answers there.
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
                found = Line(self, _MARGIN_S).ask("GET", "/")
                if self.digest is not None and found["digest"] != self.digest:
                    raise ValueError(
                        f"the environment at {self.url} is {found['digest']}, not {self.digest}. Fix: serve the one "
                        "that is meant, or give its digest"
                    )
                self._about = found
        return self._about

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


class Line:
    """A connection to the server, made anew where it broke.

    Args:
        seconds: for the answer to a request.
        patient: ask again where there is none.
    """

    def __init__(self, environment: RemoteEnvironment, seconds: float, *, patient: bool = True) -> None:
        self._environment, self._seconds = environment, seconds
        self._patience = environment.retry_seconds if patient else 0.0
        self._address = urllib.parse.urlsplit(environment.url)
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Raises Unreachable, TimeoutError, EpisodeFailed, and ValueError for a server of something else."""
        data = None if body is None else json.dumps(body).encode()
        began = time.monotonic()
        attempt = 0
        while True:
            try:
                code, answer = self._once(method, path, data)
                if answer.get("error") != "full":
                    return self._checked(code, answer)
                if time.monotonic() - began > self._seconds:
                    raise TimeoutError(f"{self._environment.url}: {answer['text']}. Fix: serve with a higher --limit")
            except TimeoutError as error:
                self.close()
                late = str(error) or "timed out"
                text = f"{self._environment.url}: no answer within {self._seconds:g} s" if late == "timed out" else late
                raise TimeoutError(text) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if time.monotonic() - began > self._patience:
                    raise Unreachable(
                        f"no environment server answers at {self._environment.url} ({type(error).__name__}: {error}). "
                        "Fix: start it, r1flow envs serve environment=NAME, and give its address as environment.url"
                    ) from None
            time.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            attempt += 1

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, method: str, path: str, data: bytes | None) -> tuple[int, dict[str, Any]]:
        if self._connection is None:
            secure = self._address.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            self._connection = kind(self._address.hostname or "", self._address.port, timeout=self._seconds)
        headers = {"Authorization": f"Bearer {os.environ.get(self._environment.token_env, '')}"}
        headers |= {} if data is None else {"Content-Type": "application/json"}
        self._connection.request(method, self._address.path + path, data, headers)
        answer = self._connection.getresponse()
        received = answer.read(MOST + 1)
        if len(received) > MOST:
            raise EpisodeFailed(f"{self._environment.url}: the answer is longer than {MOST} bytes")
        try:
            found = json.loads(received)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError(
                f"{self._environment.url} is no environment server (HTTP {answer.status}). Fix: environment.url"
            )
        return answer.status, found

    def _checked(self, code: int, answer: dict[str, Any]) -> dict[str, Any]:
        if code == 200:
            return answer
        name, text = self._environment.token_env, answer.get("text", "")
        if code == 401:
            held = "holds another one" if os.environ.get(name) else "is not set"
            raise EpisodeFailed(
                f"{self._environment.url} wants its token, and the variable {name} {held}. Fix: export the line that "
                "the server printed when it started"
            )
        if answer.get("error") == "late":
            raise TimeoutError(text)
        raise EpisodeFailed(text if answer.get("error") == "failed" else f"{self._environment.url}: {text}")


def remote_environment_check(settings: Mapping[str, Any]) -> list[str]:
    """What preflight can say of the settings, and whether somebody answers there."""
    problems = _problems(str(settings["url"]), settings.get("retry_seconds", 30.0))
    if not problems and not _answers(str(settings["url"])):
        told = f"nobody answers at {settings['url']}"
        problems.append(f"url: warning: {told}. Fix: start the server, r1flow envs serve environment=NAME")
    return problems


def _problems(url: str, retry_seconds: float) -> list[str]:
    problems = []
    address = urllib.parse.urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname or address.username:
        problems.append(f"url: is no address of a server (got {url!r}). Fix: write http://127.0.0.1:8765")
    if retry_seconds < 0:
        problems.append(f"retry_seconds: must not be negative (got {retry_seconds}). Fix: 30 is usual")
    return problems


@cache
def _answers(url: str) -> bool:
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection if address.scheme == "http" else http.client.HTTPSConnection
    line = connection(address.hostname or "", address.port, timeout=2.0)
    try:
        line.request("GET", f"{address.path.rstrip('/')}/")
        line.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        line.close()
    return True
