"""A language model behind an OpenAI-compatible endpoint: one question, one reply, or the reason why there is none."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from components.types import Message

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # worth asking again
_MAX_REPLY = 4 * 2**20  # bytes
_LONGEST_PAUSE_S = 60.0


class NoReply(Exception):
    """The endpoint gave no usable reply; the message says what it did, and never holds the key."""


class _Transient(NoReply):
    """One that may go away by itself. ``pause``: seconds that the endpoint asked to wait, if it did."""

    def __init__(self, text: str, pause: float | None = None) -> None:
        super().__init__(text)
        self.pause = pause


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Endpoint:
    """POSTs conversations to ``<url>/chat/completions`` and returns the text of each reply.

    Errors that may pass – no connection, a dropped one, time-out, 408, 409, 425, 429, 5xx – are tried again with
    exponential backoff, or after the pause that the server asks for, until the deadline; others are final at once.

    Args:
        url: up to ``/v1``, e.g. ``https://api.openai.com/v1`` or ``http://127.0.0.1:8000/v1``.
        model: name that the endpoint knows.
        key_env: environment variable that holds the key. Read when asking; never stored, logged or part of an error.
            Unset means no key.
        temperature, max_tokens: of the reply.
        options: further fields of the request.
        seconds: deadline of one question, attempts and pauses included, from when it is first sent.
        attempt_seconds: how long one attempt may go without a sign of life.
        retries: further attempts.
        backoff_s: first pause; doubles each time.
        concurrency: questions under way at once.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        key_env: str = "OPENAI_API_KEY",
        temperature: float = 0.0,
        max_tokens: int = 512,
        options: Mapping[str, Any] | None = None,
        seconds: float = 120.0,
        attempt_seconds: float = 60.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        concurrency: int = 8,
    ) -> None:
        if problems := endpoint_check(
            {
                "url": url,
                "seconds": seconds,
                "attempt_seconds": attempt_seconds,
                "retries": retries,
                "concurrency": concurrency,
            }
        ):
            raise ValueError(f"reward judge endpoint.{problems[0]}")
        self.url, self.key_env = url.rstrip("/"), key_env
        self.request = {"model": model, "temperature": temperature, "max_tokens": max_tokens, **(options or {})}
        self.seconds, self.attempt_seconds, self.retries = seconds, attempt_seconds, retries
        self.backoff_s, self.concurrency = backoff_s, concurrency
        self._opener = urllib.request.build_opener(_NoRedirects)

    @property
    def identity(self) -> str:
        """What a reply depends on besides the conversation; part of the key it is kept under."""
        return json.dumps([self.url, self.request], sort_keys=True)

    def __call__(self, conversations: Sequence[Sequence[Message]]) -> list[str | NoReply]:
        """A reply, or why there is none, for each conversation, in order."""
        with ThreadPoolExecutor(min(self.concurrency, max(1, len(conversations)))) as pool:
            return list(pool.map(self._reply, conversations))

    def _reply(self, messages: Sequence[Message]) -> str | NoReply:
        began, attempt = time.monotonic(), 0
        while True:
            try:
                return self._ask(messages, began)
            except _Transient as error:
                attempt += 1
                pause = self.backoff_s * 2 ** (attempt - 1) if error.pause is None else error.pause
                pause = min(pause, _LONGEST_PAUSE_S)
                if attempt > self.retries or time.monotonic() + pause - began >= self.seconds:
                    return NoReply(f"{error} (attempt {attempt} of {self.retries + 1})")
                time.sleep(pause)
            except NoReply as error:
                return error

    def _ask(self, messages: Sequence[Message], began: float) -> str:
        key = os.environ.get(self.key_env, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise NoReply(f"the environment variable {self.key_env} holds characters that no key has")
        body = {**self.request, "messages": [{"role": m.role, "content": m.content} for m in messages]}
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        asked = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        try:
            left = max(0.001, began + self.seconds - time.monotonic())
            with self._opener.open(asked, timeout=min(self.attempt_seconds, left)) as answer:
                return self.taken(self._read(answer, began))
        except urllib.error.HTTPError as error:
            raise _refused(error, self.key_env, key) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            told = _without(key, f"{self.url}: {type(reason).__name__}: {reason}")
            raise _Transient(told) from None
        except NoReply as error:
            raise type(error)(_without(key, str(error))) from None

    def taken(self, body: bytes) -> str:
        """What is wanted of a response body. Raises NoReply where it isn't there."""
        return _text(body)

    def _read(self, answer: http.client.HTTPResponse, began: float) -> bytes:
        """The body, of which a server may send a byte now and then for ever, or only the beginning."""
        body, length = bytearray(), answer.headers.get("Content-Length") or ""
        while part := answer.read1(65536):
            body += part
            if time.monotonic() - began > self.seconds:
                raise _Transient(f"{self.url}: the reply was not complete after {self.seconds:g} s")
            if len(body) > _MAX_REPLY:
                raise NoReply(f"{self.url}: the reply is larger than {_MAX_REPLY:,} bytes")
        if length.isdigit() and len(body) < int(length):
            raise _Transient(f"{self.url}: the connection was dropped after {len(body)} of {length} bytes")
        return bytes(body)


def endpoint_check(settings: Mapping[str, Any]) -> list[str]:
    """What preflight can say of the settings."""
    problems = []
    if not str(settings["url"]).startswith(("http://", "https://")):
        problems.append(f"url: is no address (got {settings['url']!r}). Fix: write http://host:port/v1")
    if str(settings["url"]).rstrip("/").endswith("/chat/completions"):
        fix = str(settings["url"]).rstrip("/").removesuffix("/chat/completions")
        problems.append(f"url: /chat/completions is put behind it (got {settings['url']!r}). Fix: write {fix}")
    if settings.get("concurrency", 1) < 1:
        problems.append(f"concurrency: must be at least 1 (got {settings['concurrency']}). Fix: 8 is usual")
    for name in ("seconds", "attempt_seconds"):
        if not settings.get(name, 1) > 0:
            problems.append(f"{name}: must be positive (got {settings[name]}). Fix: 60 is usual")
    if settings.get("retries", 0) < 0:
        problems.append(f"retries: must not be negative (got {settings['retries']}). Fix: 0 is off")
    return problems


def _text(body: bytes) -> str:
    """The reply in a response body. Raises NoReply for anything but the one schema."""
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise NoReply(f"the endpoint's answer is no JSON ({error}): {body[:80]!r}") from None
    match answer:
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return text
    raise NoReply(f"the endpoint's answer has no choices[0].message.content: {str(answer)[:200]}")


def _refused(error: urllib.error.HTTPError, key_env: str, key: str) -> NoReply:
    try:
        told = error.read(2000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        told = ""
    text = _without(key, f"{error.url}: HTTP {error.code} {error.reason} {' '.join(told.split())[:200]}".strip())
    if error.code in (401, 403):
        state = "holds a key" if key else "is not set"
        return NoReply(f"{text}. Fix: put the key into the environment variable {key_env} (it {state})")
    if error.code not in TRANSIENT:
        return NoReply(text)
    wait = (error.headers.get("Retry-After") or "").strip()
    return _Transient(text, float(wait) if wait.isdigit() else None)


def _without(key: str, text: str) -> str:
    """Some servers repeat the key in their error."""
    return text.replace(key, "***") if key else text
