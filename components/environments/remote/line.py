"""Requests to an `EnvironmentServer`, and what can be said of a url and a token before one is sent."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, Protocol

from components.environments.remote.wire import MOST, TOKEN_RULE, is_token

_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_PLAIN_S = 10.0  # for a server to show that it speaks plain HTTP
_KINDS = ["token", "full", "unknown", "order", "request", "late", "failed"]
_MORE = "it has more than host, port and path"


class Unreachable(ConnectionError):
    """The environment server does not answer."""


class EpisodeFailed(RuntimeError):
    """What the environment, or the server that has it, says went wrong with an episode."""


class Served(Protocol):
    """Where a server is, and how it is asked."""

    url: str
    token_env: str
    retry_seconds: float


class Line:
    """A connection to the server, made anew where it broke.

    Args:
        seconds: for the answer to a request.
        patient: ask again where there is none.
    """

    def __init__(self, served: Served, seconds: float, *, patient: bool = True) -> None:
        self._served, self._seconds = served, seconds
        self._patience = served.retry_seconds if patient else 0.0
        self._path = urllib.parse.urlsplit(served.url).path
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Raises Unreachable, TimeoutError, EpisodeFailed, and ValueError: a server of something else, or no token."""
        data = None if body is None else json.dumps(body).encode()
        began = time.monotonic()
        attempt = 0
        while True:
            try:
                code, answer = self._once(method, path, data)
            except TimeoutError:
                self.close()
                late = f"{self._served.url}: no answer within {self._seconds:g} s"
                raise TimeoutError(
                    f"{late}. Fix: see whether an environment server runs there, and what holds it up"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if time.monotonic() - began > self._patience:
                    raise Unreachable(
                        f"no environment server answers at {self._served.url} ({type(error).__name__}: {error}). "
                        "Fix: start it, r1flow envs serve environment=NAME, and give its address as environment.url"
                    ) from None
            else:
                if answer.get("error") != "full":
                    return self._checked(code, answer, path)
                if time.monotonic() - began > self._seconds:
                    raise TimeoutError(f"{self._served.url}: {answer['text']}. Fix: serve with a higher --limit")
            time.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            attempt += 1

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, method: str, path: str, data: bytes | None) -> tuple[int, dict[str, Any]]:
        if problem := token_problem(self._served.token_env):
            raise ValueError(problem)
        if self._connection is None:
            self._connection = _connected(self._served.url, self._seconds)
        headers = {"Authorization": f"Bearer {os.environ.get(self._served.token_env, '')}"}
        headers |= {} if data is None else {"Content-Type": "application/json"}
        self._connection.request(method, self._path + path, data, headers)
        answer = self._connection.getresponse()
        received = answer.read(MOST + 1)
        if len(received) > MOST:
            raise EpisodeFailed(f"{self._served.url}: the answer is longer than {MOST} bytes")
        try:
            found = json.loads(received)
        except ValueError:
            found = None
        if not isinstance(found, dict) or (answer.status != 200 and found.get("error") not in _KINDS):
            raise no_server(self._served.url, f"HTTP {answer.status}")
        return answer.status, found

    def _checked(self, code: int, answer: dict[str, Any], path: str) -> dict[str, Any]:
        if code == 200:
            return answer
        name, text, url = self._served.token_env, answer.get("text", ""), self._served.url
        if code == 401:
            held = "holds another one" if os.environ.get(name) else "is not set"
            raise EpisodeFailed(
                f"{url} wants its token, and the variable {name} {held}. Fix: export the line that the server printed "
                "when it started"
            )
        if answer["error"] == "request" and path == "/":
            raise no_server(url, f"the server has nothing at the path {self._path}")
        if answer["error"] == "late":
            raise TimeoutError(text)
        raise EpisodeFailed(text if answer["error"] == "failed" else f"{url}: {text}")


def no_server(url: str, why: str) -> ValueError:
    """What to raise where another server answers."""
    return ValueError(
        f"{url} is no environment server ({why}). Fix: give as environment.url what r1flow envs serve prints there"
    )


def url_problem(url: str, shown: str = "") -> str | None:
    """Why nothing can be asked at this address, a line of a check; ``shown`` in its place if it is a secret."""
    try:
        address = urllib.parse.urlsplit(url)
        host, port = address.hostname or "", address.port
        host.encode("idna")
    except UnicodeError:
        why = "no host is called that"
    except ValueError as error:
        why = str(error)
    else:
        if address.scheme not in ("http", "https") or not host:
            why = "it does not begin with http:// or https:// and a host"
        elif not address.path.isascii() or not url.isprintable() or " " in url:
            why = "it has characters that no address has"
        elif port == 0:
            why = "no server has port 0"
        elif any(mark in url for mark in "@?#"):
            why = _MORE
        else:
            return None
    if "@" in url:  # what is before it may be a password, also in what the error says
        why, shown = _MORE, shown or f"***@{url.rpartition('@')[2]}"
    return f"url: is no address of a server (got {shown or url!r}: {why}). Fix: write it as http://127.0.0.1:8765"


def token_problem(name: str) -> str | None:
    """Why what the variable holds cannot be sent; None if it holds nothing. Never says what it holds."""
    token = os.environ.get(name, "")
    if not token or is_token(token):
        return None
    return (
        f"token_env: what the variable {name} holds is no token, which has {TOKEN_RULE}. Fix: export the line that the "
        "server printed when it started"
    )


def _connected(url: str, seconds: float) -> http.client.HTTPConnection:
    """An open connection. Raises OSError, and ValueError: TLS with a server that has none."""
    address = urllib.parse.urlsplit(url)
    host, port, secure = address.hostname or "", address.port, address.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, port, timeout=seconds)
    try:
        connection.connect()
    except (ssl.SSLError, TimeoutError, ConnectionResetError) as error:
        met = connection.sock is not None  # the handshake came to nothing
        connection.close()
        if secure and met and not isinstance(error, ssl.SSLCertVerificationError) and _is_plain(host, port or 443):
            plain = "http" + url.removeprefix("https")
            raise ValueError(f"the server at {url} speaks plain HTTP, no TLS. Fix: environment.url={plain}") from None
        raise
    return connection


def _is_plain(host: str, port: int) -> bool:
    """Whether it answers plain HTTP; a server with TLS may do so with 400."""
    connection = http.client.HTTPConnection(host, port, timeout=_PLAIN_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status != 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
