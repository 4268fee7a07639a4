"""The owner's side of one fork server: starts it, starts programs in it, replaces it when it breaks."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from components.environments.sandbox.backends import Backend, environment
from components.environments.sandbox.outcome import Limits, Stopped

_INSIDE = ("syscalls", "seccomp", "landlock", "privileges", "macos", "codec", "runner", "server")
_PRELOADED = (
    "atexit bisect collections contextlib copy ctypes dataclasses datetime decimal enum fractions functools hashlib "
    "heapq inspect io itertools json math operator random re statistics string textwrap threading time traceback "
    "typing zlib"
).split()
# The server's code arrives over the socket: the sandbox needs no file of the project.
_BOOT = """
import json, os, sys, types
data = b""
while not data.endswith(b"\\n"):
    part = os.read(0, 1 << 16)
    if not part:
        sys.exit(1)
    data += part
data = json.loads(data)
for name in data["preload"]:
    __import__(name)
for name, source in data["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.modules[name].serve(data["settings"])
"""
START_SECONDS = 60.0  # of wall time, for a server to come up


@cache
def _modules() -> list[tuple[str, str]]:
    names = ["components.environments.sandbox", *(f"components.environments.sandbox.{name}" for name in _INSIDE)]
    found = []
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        found.append((name, Path(spec.origin).read_text(encoding="utf-8")))
    return found


class Server:
    """One fork server, running at most one program at a time.

    Raises:
        Stopped: ("infra") it did not come up; the reason is in the text.
    """

    def __init__(self, backend: Backend) -> None:
        self.control, theirs = socket.socketpair()
        if hasattr(socket, "SO_PASSCRED"):
            self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.control.settimeout(START_SECONDS)
        self._buffer = b""
        with theirs:
            self.process = subprocess.Popen(
                backend.command(_BOOT),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment("/tmp" if backend.scratch_mib else "/"),
                cwd="/",
                start_new_session=True,
            )
        bundle = {"modules": _modules(), "preload": _PRELOADED, "settings": backend.settings()}
        try:
            self.control.sendall(json.dumps(bundle).encode() + b"\n")
            answer = self.control.recv(2)
        except OSError as error:
            answer = str(error).encode()
        if answer != b"H\n":
            raise Stopped("infra", f"the {backend.name} server did not start: {self._last_words() or 'no answer'}")

    def start(self, limits: Limits, handles: list[int]) -> None:
        """Start a program on stdin, stdout, stderr, job and answers; they are the caller's to close."""
        try:
            socket.send_fds(self.control, [json.dumps({"limits": asdict(limits)}).encode() + b"\n"], handles)
        except OSError as error:
            raise Stopped("infra", f"the sandbox server is gone: {error}") from None

    def receive(self) -> list[tuple[bytes, int]]:
        """Lines that have arrived, each with its sender's process id (0 where the kernel does not tell)."""
        size = socket.CMSG_SPACE(struct.calcsize("3i"))
        try:
            data, ancillary, _, _ = self.control.recvmsg(65536, size)
        except OSError as error:
            raise Stopped("infra", f"the sandbox server is gone: {error}") from None
        if not data:
            raise Stopped("infra", f"the sandbox server is gone: {self._last_words()}")
        pid = 0
        for level, kind, body in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, getattr(socket, "SCM_CREDENTIALS", None)):
                pid = struct.unpack("3i", body[:12])[0]
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [(line, pid) for line in lines]

    def kill_program(self) -> None:
        with contextlib.suppress(OSError):
            self.control.sendall(b"K\n")

    def close(self) -> None:
        """End the server and whatever runs in it."""
        self.control.close()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _last_words(self) -> str:
        """The end of what it wrote on stderr; whoever still holds that pipe is not waited for."""
        stderr = self.process.stderr
        assert stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        text = b""
        while select.select([stderr], [], [], 0)[0] and (part := os.read(stderr.fileno(), 65536)):
            text += part
        self.close()
        return text.decode(errors="replace").strip()[-400:]


def is_usable(server: Any) -> bool:
    """Whether a server is there and alive."""
    return server is not None and server.process.poll() is None
