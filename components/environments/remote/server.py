"""HTTP for `Hosting`: who asks, what is asked, and the form of the answers."""

from __future__ import annotations

import hmac
import json
import logging
import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from components.environments.remote.hosting import Hosting, Refused
from components.environments.remote.wire import MOST, TOKEN_RULE, about, is_token
from components.types import Task

_log = logging.getLogger(__name__)
_STRANGER_S = 30.0  # for a connection to send its first request with the token
_SWEEP_S = 1.0
_PATH = re.compile(r"/episodes/([A-Za-z0-9._-]{1,80})(?:/(state|steps/([0-9]{1,9})))?")
_CODES = {"full": 503, "unknown": 404, "order": 409, "request": 400, "late": 504, "failed": 500}


class EnvironmentServer:
    """Serves the episodes of an environment until it is closed.

    Args:
        token: what every request has to bring as ``Authorization: Bearer …``.
        digest: names what is served; clients may ask for it.
        host: address to listen at; port: 0 takes a free one.

    Raises:
        OSError: the address is taken or not this machine's.
        ValueError: a token that no request could bring.
    """

    def __init__(
        self, hosting: Hosting, *, token: str, digest: str = "", host: str = "127.0.0.1", port: int = 0
    ) -> None:
        if not is_token(token):
            raise ValueError(f"the token must have {TOKEN_RULE}. Fix: take one of secrets.token_urlsafe(24)")
        self.hosting, self._token = hosting, token
        self.about = about(hosting.environment, digest)
        self._http = _Http((host, port), _handler(self))
        self.port = self._http.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._over = threading.Event()

    def serve(self) -> None:
        """Answer until `close`, in this thread."""
        threading.Thread(target=self._sweep, daemon=True).start()
        try:
            self._http.serve_forever(poll_interval=0.2)
        finally:
            self._over.set()
            self._http.server_close()
            self.hosting.close_all()

    def close(self) -> None:
        """End `serve`; call it from another thread."""
        self._http.shutdown()

    def knows(self, header: str) -> bool:
        return hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode())

    def _sweep(self) -> None:
        while not self._over.wait(_SWEEP_S):
            self.hosting.sweep()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("connection of %s broke", client_address, exc_info=True)  # clients come and go


def _handler(server: EnvironmentServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One connection; the episodes that it asked for last are held by it."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1
        timeout = _STRANGER_S

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):  # a machine that vanished says no goodbye
                    self.connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

        def finish(self) -> None:
            server.hosting.release(self)
            super().finish()

        def do_GET(self) -> None:
            self._answer(self._get)

        def do_POST(self) -> None:
            self._answer(self._post)

        def do_PUT(self) -> None:
            self._answer(lambda: server.hosting.begin(self._episode(), self._task(), self) or {})

        def do_DELETE(self) -> None:
            self._answer(lambda: server.hosting.close(self._episode()) or {})

        def _get(self) -> dict[str, Any]:
            if self.path == "/":
                return server.about
            return {"state": server.hosting.state(self._episode("state"), self)}

        def _post(self) -> dict[str, Any]:
            if self.path == "/schemas":
                environment, task = server.hosting.environment, self._task()
                return {"schemas": environment.schemas(task), "manual": environment.manual(task)}
            name = self._episode("steps")
            text = self.body.get("text")
            if not isinstance(text, str):
                raise Refused("request", 'a step is {"text": "…"}')
            number = _PATH.fullmatch(self.path)
            assert number is not None
            return server.hosting.step(name, int(number[3]), text, self)

        def _episode(self, part: str = "") -> str:
            found = _PATH.fullmatch(self.path)
            if found is None or (found[2] or "").partition("/")[0] != part:
                raise Refused("request", f"no {self.command} of {self.path[:200]}")
            return found[1]

        def _task(self) -> Task | None:
            try:
                row = self.body["task"]
                return None if row is None else Task.from_json(row)
            except (KeyError, TypeError) as error:
                raise Refused("request", f"no task: {error}") from None

        def _read(self) -> dict[str, Any]:
            length = self.headers.get("Content-Length", "0")
            if not length.isdigit() or int(length) > MOST or self.headers.get("Transfer-Encoding"):
                self.close_connection = True
                raise Refused("request", f"a body has a Content-Length of at most {MOST}")
            data = self.rfile.read(int(length))
            try:
                body = json.loads(data) if data else {}
            except (ValueError, RecursionError):
                body = None
            if not isinstance(body, dict):
                raise Refused("request", "the body is no JSON object")
            return body

        def _answer(self, act: Callable[[], dict[str, Any]]) -> None:
            if not server.knows(self.headers.get("Authorization", "")):
                self.close_connection = True
                self._send(401, {"error": "token", "text": "no token, or another one"})
                return
            self.connection.settimeout(None)
            try:
                self.body = self._read()
                self._send(200, act())
            except Refused as error:
                self._send(_CODES[error.kind], {"error": error.kind, "text": str(error)})
            except TimeoutError as error:
                self._send(_CODES["late"], {"error": "late", "text": str(error)})
            except BaseException as error:  # of the environment; it ends the episode, not the server
                text = f"{type(error).__name__}: {error}"[:2000]
                self._send(_CODES["failed"], {"error": "failed", "text": text})

        def _send(self, code: int, content: dict[str, Any]) -> None:
            try:
                data = json.dumps(content).encode()
            except (TypeError, ValueError) as error:
                code, data = 500, json.dumps({"error": "failed", "text": f"the answer is no JSON: {error}"}).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            _log.debug(format, *args)

    return Handler
