"""What is asked of a sandbox and what it says of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["pass", "fail", "cpu_limit", "memory", "protocol", "infra"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Attributes:
    cpu_seconds: CPU time of the whole program, all threads; whole seconds.
    idle_seconds: time in which it neither runs nor waits for a CPU (sleep, deadlock): also the program's own doing.
    wall_seconds: beyond this the machine is too slow, whatever the program did: infra.
    memory_mib: address space; with no second process and no shared memory, all memory there is.
    output_bytes: of stdout, stderr and answers, each.
    threads: beside each other.
    """

    cpu_seconds: int = 5
    idle_seconds: float = 5.0
    wall_seconds: float = 60.0
    memory_mib: int = 512
    output_bytes: int = 1 << 20
    threads: int = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """One call's result: a value, or the exception's name and text."""

    value: Any = None
    error: str | None = None


Call = tuple[str, Sequence[Any], Mapping[str, Any]]  # name, args, kwargs: data only


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a program; never whether it is right, except for `Sandbox.check`.

    Attributes:
        outcome: "pass" if it ran to its own end (and, for `check`, the tests passed).
        detail: why not, in words.
        answers: of the calls, in order, as far as it came.
        exit_code: of a script.
    """

    outcome: Outcome
    detail: str = ""
    answers: tuple[Answer, ...] = ()
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None


class Stopped(Exception):
    """A program cannot go on; `outcome` says whose fault it is."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome: Outcome = outcome
        self.detail = detail


class SandboxUnavailable(RuntimeError):
    """No sandbox that holds: says what was tried, what got through, and how to go on."""
