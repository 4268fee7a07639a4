"""Attacks a sandbox before it is used, and refuses one that does not hold."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.environments.sandbox import attacks
from components.environments.sandbox.backends import AUTOMATIC, Backend
from components.environments.sandbox.outcome import Limits, SandboxUnavailable, Stopped
from components.environments.sandbox.program import Line, Program
from components.environments.sandbox.worker import Server

_REMEDY = (
    "Fix: install bubblewrap (package bubblewrap), or use a kernel with Landlock (5.13 or later, lsm=landlock); "
    "to run programs without any protection all the same: sandbox.backend=unsafe"
)


def choose(wanted: str, options: Mapping[str, Any], limits: Limits) -> Backend:
    """The backend asked for, or with "auto" the strongest that holds. "unsafe" is not attacked: it would fall.

    Raises:
        SandboxUnavailable: none holds; names each with what is missing, or what got through, and the remedy. A backend
            that was asked for by name is never replaced by another.
    """
    if wanted == "unsafe":
        return Backend("unsafe", **options)
    reasons = {}
    for name in AUTOMATIC if wanted == "auto" else (wanted,):
        backend = Backend(name, **options)
        reason = backend.missing() or why_not(backend, limits)
        if reason is None:
            return backend
        reasons[name] = reason
    text = "\n".join(f"  {name}: {reason}" for name, reason in reasons.items())
    raise SandboxUnavailable(f"sandbox.backend={wanted}: no sandbox that holds on this machine\n{text}\n{_REMEDY}")


def why_not(backend: Backend, limits: Limits) -> str | None:
    """Why a backend must not be used here, None if all attacks were stopped."""
    try:
        server = Server(backend)
        try:
            through = attack(server, limits)
        finally:
            server.close()
    except Stopped as stopped:
        return stopped.detail
    return f"did not stop a program from: {', '.join(through)}" if through else None


def attack(server: Server, limits: Limits) -> list[str]:
    """Names of the attacks that get through. Raises Stopped: the probe could not run to its end."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="r1flow-probe-")))
        directory.chmod(0o755)
        (canary := directory / "canary").write_text("secret")
        (target := directory / "target").touch()
        target.chmod(0o666)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        arguments = {
            "read a file outside": [str(canary)],
            "read the project's own files": [attacks.__file__],
            "write a file outside": [str(target)],
            "connect to this machine": [listener.getsockname()[1]],
            "use more memory than it may": [2 * limits.memory_mib],
        }
        source = Path(attacks.__file__).read_text(encoding="utf-8")
        limits = replace(limits, cpu_seconds=max(5, limits.cpu_seconds))
        program = stack.enter_context(Program(server, {"kind": "calls", "source": source}, limits))
        if (answer := _ask(program, "control", [])).get("value") is not True:
            raise Stopped("infra", f"a harmless program cannot {attacks.CONTROL}: {answer}")
        through = []
        for name, function in attacks.ATTACKS.items():
            answer = _ask(program, function, arguments.get(name, []))
            if answer.get("value") is True:
                through.append(name)
            elif answer.get("value") is not False and "error" not in answer:
                raise Stopped("infra", f"the probe got no answer to {name!r}: {answer}")
        if target.stat().st_size and "write a file outside" not in through:
            through.append("write a file outside")
        return through


def _ask(program: Program, function: str, arguments: list[Any]) -> Line:
    program.tell({"call": function, "args": arguments, "kwargs": {"dict": []}})
    return program.listen()
