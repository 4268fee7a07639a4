"""Faults at the system calls of one moment of a stage: publishing its artifact, a checkpoint, a chunk of samples.

A child runs the stage up to that moment. There it forks once a fault, each time on a copy of what lies on the disk, and
``strace`` kills the copy at, or fails, one system call of its own choice. What is left is for the tests to go on from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import components.stages.rl_run
import components.stages.train
from components.artifacts import ArtifactStore, Claim
from components.runtime import Out
from components.stages.drawn import Drawn
from tests.faults.plant import Ended, Stage, in_child, start

STRACE = shutil.which("strace")
FAILING = ("openat", "write", "fsync", "rename", "mkdir")
CALLS = (*FAILING, "pwrite64", "ftruncate", "unlink", "unlinkat", "rmdir", "getdents64", "close")
ERRORS = ("ENOSPC", "EIO")
END = 999  # closing a descriptor that there is not marks the end of the moment among the system calls
_CALL = re.compile(r"^(\w+)\((.*)")


@dataclass(frozen=True)
class Fault:
    """At the ``number``-th ``call``: the error of that name, or a kill if it has none."""

    call: str
    number: int
    error: str = ""

    def options(self) -> list[str]:
        what = f"error={self.error}" if self.error else "signal=KILL"
        return ["-e", f"inject={self.call}:{what}:when={self.number}"]


@dataclass(frozen=True)
class Hit:
    """A fault that was injected, the store it left, and what the stage said of it (of an error)."""

    fault: Fault
    root: Path
    error: str = ""


def strike(stage: Stage, moment: str, root: Path, *, kills: int, errors: bool, nth: int = 1) -> list[Hit]:
    """Inject faults at the ``nth`` time that a stage comes to a moment; where they happened.

    Args:
        kills: how many (2 or more), spread evenly over the system calls, the first and the last among them.
        errors: whether each of `FAILING` that occurs fails once with each of `ERRORS`, at a random place.
    """
    planned = root / "planned.json"

    def body() -> None:
        _at(moment, nth, lambda act: _strike_all(stage, root, act, kills, errors, planned))
        stage.build(root / "source")
        raise AssertionError(f"{stage.name} never came to {moment}")

    done = in_child(body, root / "zygote.json")
    assert planned.exists(), f"{stage.name} at {moment}: {done.error or done.status}, see {root / 'output'}"
    hits = []
    for row in json.loads(planned.read_text()):
        note = Path(row["root"]) / "note.json"
        told = json.loads(note.read_text()) if note.exists() else {}
        hits.append(Hit(Fault(**row["fault"]), Path(row["root"]), told.get("error", "")))
    return hits


def _at(moment: str, nth: int, loop: Callable[[Callable[[Path], Any]], None]) -> None:
    """Replace the moment's function: its ``nth`` call is given to ``loop`` as a function of the store's root."""
    seen = 0

    def is_it() -> bool:
        nonlocal seen
        seen += 1
        return seen == nth

    commit, keep, save = Claim.commit, Drawn.keep, components.stages.train.save_checkpoint

    def publish(claim: Claim, **what: Any) -> Any:
        def act(root: Path) -> None:
            store = ArtifactStore(root)
            with store.claim(claim.stage, claim.key) as mine:
                vars(mine).update(draft=store.draft_path(claim.stage, claim.key), resumed_at=None)
                commit(mine, **what)

        loop(act)

    def elsewhere(out: Out, root: Path) -> Out:
        return dataclasses.replace(out, path=root / out.path.relative_to(out.path.parents[1]))

    def checkpoint(out: Out, *what: Any, **more: Any) -> None:
        if not is_it():
            return save(out, *what, **more)
        return loop(lambda root: save(elsewhere(out, root), *what, **more))

    def samples(drawn: Drawn, *what: Any) -> None:
        if not is_it():
            return keep(drawn, *what)
        of = (drawn.folder.name, drawn.tasks, drawn.n)
        return loop(lambda root: keep(Drawn(elsewhere(drawn.out, root), *of), *what))

    match moment:
        case "artifact":
            Claim.commit = publish
        case "checkpoint":
            components.stages.train.save_checkpoint = components.stages.rl_run.save_checkpoint = checkpoint
        case "samples":
            Drawn.keep = samples


def _strike_all(stage: Stage, root: Path, act: Callable[[Path], Any], kills: int, errors: bool, planned: Path) -> None:
    """In the child at its moment: one fork a fault. Ends the child."""
    source, number = root / "source", 0

    def trial(options: list[str], log: Path) -> tuple[Path, Ended]:
        nonlocal number
        number += 1
        copy = root / f"{number:03d}"
        shutil.copytree(source, copy)
        return copy, traced(lambda: act(copy), copy / "note.json", options, log)

    log = root / "calls.txt"
    _, clean = trial([], log)
    assert clean.status == 0 and not clean.error, f"without a fault: {clean}"
    hits = []
    for fault in _faults([name for name, _ in calls_in(log)], kills, errors, random.Random(stage.name)):
        copy, came_to = trial(fault.options(), Path(os.devnull))
        assert came_to.killed or fault.error, f"{fault}: {came_to}"
        hits.append({"root": str(copy), "fault": dataclasses.asdict(fault)})
    draft = planned.with_suffix(".tmp")
    draft.write_text(json.dumps(hits))
    draft.rename(planned)
    os._exit(0)


def _faults(calls: list[str], kills: int, errors: bool, draw: random.Random) -> Iterator[Fault]:
    wanted = min(kills, len(calls))
    for place in (i * (len(calls) - 1) // (wanted - 1) for i in range(wanted)):
        yield Fault(calls[place], 1 + calls[:place].count(calls[place]))
    if errors:
        for call, times in Counter(call for call in calls if call in FAILING).items():
            yield from (Fault(call, draw.randint(1, times), error) for error in ERRORS)


def calls_in(log: Path) -> list[tuple[str, str]]:
    """(name, arguments) of the system calls of a moment, in order."""
    calls = [match.groups() for line in log.read_text(errors="replace").splitlines() if (match := _CALL.match(line))]
    ends = [place for place, (name, arguments) in enumerate(calls) if (name, arguments[:3]) == ("close", str(END))]
    assert ends, f"{log} does not hold the end"
    return [(str(name), str(arguments)) for name, arguments in calls[: ends[0]]]


def traced(body: Callable[[], Any], note: Path, options: list[str], log: Path) -> Ended:
    """Run ``body`` in a child that ``strace`` has hold of before it begins."""
    assert STRACE
    listen, go = os.pipe()

    def when_told() -> Any:
        os.close(go)
        os.read(listen, 1)
        found = body()
        with contextlib.suppress(OSError):
            os.close(END)
        return found

    pid = start(when_told, note)
    os.close(listen)
    command = [STRACE, "-y", "-s", "0", "-o", str(log), "-e", f"trace={','.join(CALLS)}", *options, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if "attached" not in attached:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise RuntimeError(f"strace: {attached}{tracer.stderr.read()}")
        os.close(go)  # the end of the file is the signal
        _, status = os.waitpid(pid, 0)
    told = json.loads(note.read_text()) if note.exists() else {}
    return Ended(status, told.get("value"), told.get("error", ""))


def errors_anywhere(stage: Stage, root: Path, times: int) -> Iterator[Hit]:
    """Fail ``times`` system calls of the whole stage, drawn from those that concern files of its store."""
    log, draw = root / "calls.txt", random.Random(f"anywhere {stage.name}")
    clean = traced(lambda: stage.build(root / "clean"), root / "clean.json", [], log)
    assert clean.status == 0 and not clean.error, f"without a fault: {clean}"
    calls = calls_in(log)
    ours = [i for i, (name, arguments) in enumerate(calls) if name in FAILING and f"{root}/clean" in arguments]
    for number, place in enumerate(draw.choices(ours, k=times)):
        name = calls[place][0]
        fault = Fault(name, sum(call == name for call, _ in calls[: place + 1]), draw.choice(ERRORS))
        here = root / f"{number:03d}"
        ended = traced(partial(stage.build, here), here / "note.json", fault.options(), Path(os.devnull))
        yield Hit(fault, here, ended.error)


def fail_in_python(number: int, code: int | None = None) -> None:
    """Without strace: at this process's ``number``-th disk operation from now on kill it, or fail with ``code``."""
    seen = 0

    def count(event: str, args: tuple = ()) -> None:
        nonlocal seen
        path = str(args[0]) if args else ""
        counted = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "os.truncate", "fsync")
        if event not in counted and (event != "open" or "site-packages" in path or path.endswith((".py", ".pyc"))):
            return
        seen += 1
        if seen != number:
            return
        if code is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(code, os.strerror(code), path)

    fsync = os.fsync
    os.fsync = lambda fd: (count("fsync"), fsync(fd))[1]
    sys.addaudithook(count)
