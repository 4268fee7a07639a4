"""The sandbox as others use it: programs go in, what they answered comes out."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from components.environments.sandbox import conversation
from components.environments.sandbox.backends import AUTOMATIC, Backend
from components.environments.sandbox.outcome import Call, Limits, Result, Stopped
from components.environments.sandbox.probe import choose
from components.environments.sandbox.program import Line, Program
from components.environments.sandbox.worker import Server

BackendName = Literal["auto", "bwrap", "landlock", "macos", "unsafe"]


class Sandbox:
    """Runs untrusted Python, each program in a process that can only compute. Usable from several threads.

    It starts with its first program: the backend is chosen, attacked (`probe`), and refused if an attack gets through.
    A failure that is not the program's (the server died, the machine is overloaded) is tried again ``retries`` times.
    What a program computes depends on the program alone: hashing and `random` are seeded, nothing is left by others.

    Args:
        backend: "auto" is the strongest of bwrap, landlock, macos that works here, and an error if none does;
            "unsafe" confines nothing: `forgeable` is then True.
        workers: programs at a time; does not change results.
        cpu_seconds: per program, all threads together; whole seconds, at least 1.
        idle_seconds: per program, asleep or blocked by its own choice.
        wall_seconds: per program; beyond it the machine is at fault.
        memory_mib: address space per program.
        output_bytes: of stdout, of stderr and of answers.
        scratch_mib: size of a private, writable ``/tmp``, fresh for every program (which then starts more slowly); 0:
            a program can write nothing at all. Needs bwrap.
        paths: further directories to import from, readable by programs.
        retries: further attempts after an infrastructure failure.
    """

    def __init__(
        self,
        *,
        backend: BackendName = "auto",
        workers: int = 2,
        cpu_seconds: int = 5,
        idle_seconds: float = 5.0,
        wall_seconds: float = 60.0,
        memory_mib: int = 512,
        output_bytes: int = 1 << 20,
        scratch_mib: int = 0,
        paths: Sequence[str] = (),
        retries: int = 2,
    ) -> None:
        problems = _problems({"backend": backend, "workers": workers, "cpu_seconds": cpu_seconds})
        if problems:
            raise ValueError(f"sandbox: {'; '.join(problems)}")
        self.wanted, self.workers, self.retries = backend, workers, retries
        self.limits = Limits(cpu_seconds, idle_seconds, wall_seconds, memory_mib, output_bytes)
        self._options = {"paths": tuple(paths), "scratch_mib": scratch_mib}
        self._idle: queue.SimpleQueue[list[Server | None]] = queue.SimpleQueue()
        self._backend: Backend | None = None
        self._owner = 0  # process that started the servers
        self._lock = threading.Lock()

    @property
    def forgeable(self) -> bool:
        """True if a program can reach what judges it."""
        return self.wanted == "unsafe"

    @property
    def backend(self) -> str:
        """Name of the backend in use; starts the sandbox. Raises SandboxUnavailable."""
        return self._started().name

    def script(self, source: str, stdin: str = "") -> Result:
        """Run a program as ``__main__`` with this standard input."""
        return self._retried(
            lambda place: conversation.script(self._program(place, 0, "script", source, stdin), self.limits)
        )

    def calls(self, source: str, calls: Sequence[Call]) -> Result:
        """Execute a module, then make the calls ``(name, args, kwargs)`` one after the other. Raises codec.NotData."""
        return self._retried(lambda place: conversation.calls(self._program(place, 0, "calls", source), calls))

    def check(self, source: str, tests: str, entry_point: str) -> Result:
        """Run ``check(candidate)`` of the tests, in a second sandbox; ``candidate`` calls into the program's sandbox.

        Outcome "fail" with the exception if the tests raise. Only data crosses, in both directions.
        """

        def attempt(place: list[Server | None]) -> Result:
            judge = self._program(place, 1, "check", tests, entry_point=entry_point)
            try:
                accused = self._program(place, 0, "calls", source)
            except Stopped:
                judge.close()
                raise
            return conversation.check(judge, accused, entry_point)

        return self._retried(attempt)

    def close(self) -> None:
        """End all servers; the next program starts new ones."""
        with self._lock:
            while self._backend is not None and self._owner == os.getpid() and not self._idle.empty():
                for server in self._idle.get():
                    if server is not None:
                        server.close()
            self._backend = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _started(self) -> Backend:
        with self._lock:
            if self._owner != os.getpid():  # servers of the process that this one is a copy of stay that one's
                self._idle, self._backend, self._owner = queue.SimpleQueue(), None, os.getpid()
            if self._backend is None:
                self._backend = choose(self.wanted, self._options, self.limits)
                for _ in range(self.workers):
                    self._idle.put([None, None])
            return self._backend

    @contextlib.contextmanager
    def _place(self) -> Iterator[list[Server | None]]:
        """A worker's servers: one for programs, one for tests that question them."""
        self._started()
        place = self._idle.get()
        try:
            yield place
        finally:
            self._idle.put(place)

    def _retried(self, attempt: Callable[[list[Server | None]], Result]) -> Result:
        result = Result("infra")
        with self._place() as place:
            for _ in range(1 + self.retries):
                try:
                    result = attempt(place)
                except Stopped as stopped:
                    result = Result(stopped.outcome, stopped.detail)
                if result.outcome != "infra":
                    break
        return result

    def _program(
        self, place: list[Server | None], which: int, kind: str, source: str, stdin: str = "", **job: Any
    ) -> Program:
        server = place[which]
        if server is not None and (server.process.poll() is not None or self._options["scratch_mib"]):
            server.close()
            server = None
        if server is None:
            server = place[which] = Server(self._started())
        line: Line = {"kind": kind, "source": source, **job}
        return Program(server, line, self.limits, stdin.encode("utf-8", errors="replace"))


def sandbox_check(settings: Mapping[str, Any]) -> list[str]:
    """What can be said before a run: settings that can't be, and a machine on which no backend can work."""
    if problems := _problems(settings):
        return problems
    wanted = settings.get("backend", "auto")
    names = AUTOMATIC if wanted == "auto" else (wanted,)
    reasons = {name: Backend(name, scratch_mib=settings.get("scratch_mib") or 0).missing() for name in names}
    if all(reasons.values()):
        text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return [f"backend: none works on this machine ({text}). Fix: install bubblewrap, or accept the risk: unsafe"]
    return []


def _problems(settings: Mapping[str, Any]) -> list[str]:
    problems = []
    known = ("auto", *AUTOMATIC, "unsafe")
    if settings.get("backend", "auto") not in known:
        problems.append(f"backend: no such backend {settings['backend']!r}. Fix: one of {', '.join(known)}")
    for name in ("workers", "cpu_seconds"):
        if settings.get(name, 1) < 1:
            problems.append(f"{name}: must be at least 1 (got {settings[name]})")
    return problems
