"""Programs that attack a sandbox, and what shows that one got through. Standard library only: run as any user.

``python sandbox_attacks.py BACKEND [quick]`` runs them all and prints ``{name: [outcome, what got through]}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from components.environments.sandbox.outcome import Result
from components.environments.sandbox.pool import Sandbox

PREAMBLE = """
import ctypes, os, sys, time, socket, mmap, threading, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def through(what=""):
    print("THROUGH", what, flush=True)
def tries(*attempts):
    for attempt in attempts:
        try:
            if attempt():
                through(getattr(attempt, "__name__", ""))
        except (NameError, SyntaxError):
            raise  # an attack that attacks nothing
        except Exception:
            pass
def writes(path):
    with open(path, "wb") as file:
        return file.write(b"x")
def reads(path):
    with open(path, "rb") as file:
        return file.read(1)
"""


@dataclass(frozen=True)
class Attack:
    """Attributes: outcomes: allowed ones; heavy: burns a second of CPU time."""

    source: str
    outcomes: tuple[str, ...] = ("pass", "fail")
    heavy: bool = False


def _read() -> dict[str, Attack]:
    """The attacks in ``attacks.txt``: a line ``=== name [| outcomes] [| heavy]``, then the program."""
    found = {}
    for section in Path(__file__).with_name("attacks.txt").read_text().split("=== ")[1:]:
        head, _, source = section.partition("\n")
        name, *marks = head.split(" | ")
        heavy = "heavy" in marks
        outcomes = next((tuple(mark.split()) for mark in marks if mark != "heavy"), ("pass", "fail"))
        found[name] = Attack(source, outcomes, heavy)
    return found


ATTACKS = _read()


@contextlib.contextmanager
def bait() -> Iterator[tuple[dict[str, object], Callable[[], list[str]]]]:
    """What attacks aim at, and a function that says what of it was touched."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o777)
        (secret := directory / "secret").write_text("expected values")
        secret.chmod(0o644)
        (target := directory / "target").write_text("untouched")
        target.chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"r1flow-{os.getpid()}"
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind("\0" + abstract)
        unix.listen()
        os.environ["R1FLOW_SECRET"] = "x"
        before = _traces(target)

        def touched() -> list[str]:
            found = [] if target.read_text() == "untouched" and _traces(target) == before else ["target"]
            found += [name for name in os.listdir(directory) if name not in ("secret", "target")]
            for listener in (tcp, unix):
                listener.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    listener.accept()
                    found.append("connection")
            for place in ("/tmp", "/dev/shm", "/var/tmp"):
                found += [
                    f"{place}/{n}" for n in os.listdir(place) if n.startswith(("r1flow-attack", "fill", "link", "hard"))
                ]
            return found

        names = {"SECRET": str(secret), "TARGET": str(target), "PORT": tcp.getsockname()[1], "ABSTRACT": abstract}
        yield {**names, "OWNER": os.getpid(), "PROJECT": _module_file(), "TESTS": __file__}, touched


def _traces(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _module_file() -> str:
    return str(sys.modules[Sandbox.__module__].__file__)


def descendants() -> set[int]:
    """Processes that this one started, or that their parents left."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found, last = {os.getpid()}, set()
    while found != last:
        last = set(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def run(backend: str, *, quick: bool = False, **settings: object) -> dict[str, tuple[str, str]]:
    """Outcome of every attack and what got through, which must be nothing."""
    before = descendants()  # of other tests
    chosen = {name: attack for name, attack in ATTACKS.items() if not (quick and attack.heavy)}
    with bait() as (names, touched):
        head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        options = {"workers": 4, "cpu_seconds": 1, "idle_seconds": 1.0, "memory_mib": 256, **settings}
        with Sandbox(backend=backend, **options) as sandbox:  # type: ignore[arg-type]
            assert sandbox.backend == backend

            def one(item: tuple[str, Attack]) -> tuple[str, Result, float]:
                began = time.monotonic()
                return item[0], sandbox.script(head + PREAMBLE + item[1].source), time.monotonic() - began

            with ThreadPoolExecutor(4) as threads:
                results = list(threads.map(one, chosen.items()))
            still = sandbox.script("print('alive')").stdout
        report = {}
        for name, result, _ in results:
            loot = " ".join(line for line in result.stdout.splitlines() if line.startswith("THROUGH"))
            if any(error in result.stderr for error in ("NameError", "SyntaxError", "ImportError")):
                loot += f" the attack is broken: {result.stderr}"
            if result.outcome not in chosen[name].outcomes:
                loot += f" unexpected outcome: {result.detail}{result.stderr[-300:]}"
            report[name] = (result.outcome, loot)
        report["afterwards"] = (still.strip(), " ".join([*touched(), *(str(pid) for pid in descendants() - before)]))
        return report


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], quick="quick" in sys.argv[2:])))
