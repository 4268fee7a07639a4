"""``r1flow run -m``: every combination of the swept values, each run in a process of its own.

The runs share the store, so a stage they have in common is built once. One that fails doesn't stop the others.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.compose import compose
from flows.errors import BadInput, Problem
from flows.redact import redact
from flows.settings import COMMAND_LINE, Groups, config_roots, parse
from flows.sweep_table import show_sweep


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> list[list[str]]:
    """Overrides of each run: the product of all swept values, the last one changing fastest.

    What the configuration lists under ``sweep`` is swept too, unless the command line gives that key.

    Raises: BadInput for a sweep without a list of values (``interval``).
    """
    groups = Groups.find(config_roots(config_dir))
    overrides = [*overrides, *_usual(overrides, config_dir)]
    return [list(combination) for combination in itertools.product(*(sweep_values(text, groups) for text in overrides))]


def _usual(overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """Overrides for what the configuration sweeps and the command line leaves alone."""
    parsed = parse(overrides)
    fixed = compose([o.text for o in parsed if not o.is_sweep], config_dir)
    swept = fixed.root.get("sweep") or {}
    if not isinstance(swept, Mapping):
        raise BadInput(Problem("configuration", "sweep", "is not a mapping", got=swept, fix="write key: values"))
    texts = {key: ",".join(map(str, v)) if isinstance(v, list) else str(v) for key, v in swept.items()}
    return [f"{key}={text}" for key, text in texts.items() if key not in {o.key for o in parsed}]


def sweep_values(text: str, groups: Groups) -> list[str]:
    """The overrides that one override with several values stands for; itself if it has one value.

    Raises: BadInput for an interval, which only an optimiser could draw from.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parse([text])
    override = OverridesParser.create().parse_override(text)
    if not override.is_sweep_override():
        return [text]
    key = text.partition("=")[0]
    if override.is_discrete_sweep() and (glob := getattr(override.value(), "filter", None)) is None:
        if values := [f"{key}={value}" for value in override.sweep_string_iterator()]:
            return values
        raise BadInput(Problem(COMMAND_LINE, text, "has no values", fix=f"list some: {key}=a,b,c or {key}=range(0,3)"))
    if override.is_discrete_sweep() and override.key_or_group in groups:
        return [f"{key}={option}" for option in glob(sorted(groups.options[override.key_or_group]))]
    raise BadInput(
        Problem(COMMAND_LINE, text, "has no list of values", fix=f"list them: {key}=a,b,c or {key}=range(0,3)")
    )


def run_sweep(overrides: Sequence[str], config_dir: Path | None = None, *, jobs: int = 1, quiet: bool = False) -> int:
    """Run all combinations, ``jobs`` at a time; 0 if all succeeded, 1 if one failed, 130 or 143 if interrupted.

    Raises: BadInput if any combination is not fit to run; then none is started.
    """
    from flows.run import prepare
    from flows.runs import new_directory
    from flows.signals import Stop

    combinations = expand(overrides, config_dir)
    prepared = [_prepared(prepare, i, lines, config_dir) for i, lines in enumerate(combinations)]
    directory = new_directory(prepared[0].artifacts / "sweeps")
    common = set(combinations[0]).intersection(*combinations)
    labels = [" ".join(redact(text) for text in lines if text not in common) or "(no change)" for lines in combinations]
    sweep = _Sweep(directory, labels)
    print(f"sweep {directory.name}: {len(combinations)} runs, {directory}", flush=True)
    with Stop().installed() as stop:
        waiting, running = list(enumerate(combinations)), {}
        signalled = 0
        while running or (waiting and not stop.requested()):
            while waiting and len(running) < jobs and not stop.requested():
                number, lines = waiting.pop(0)
                print(f"\n[{number + 1}/{len(combinations)}] {labels[number]}", flush=True)
                running[number] = _start(directory, number, lines, config_dir, quiet=quiet, to_file=jobs > 1)
                sweep.update(number, state="running", started=_now())
            wanted = int(stop.requested()) + int(stop.now.is_set())
            if signalled < wanted:
                signalled = wanted
                for process in running.values():
                    process.send_signal(stop.signum or signal.SIGTERM)
            for number, process in list(running.items()):
                if process.poll() is not None:
                    del running[number]
                    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                    sweep.update(number, state=_STATES.get(code, "failed"), exit=code, ended=_now())
                    print(f"[{number + 1}/{len(combinations)}] exit {code}: {labels[number]}", flush=True)
            time.sleep(0.05)
    failed = sum(job["state"] == "failed" for job in sweep.jobs)
    done = sum(job["state"] == "done" for job in sweep.jobs)
    print(f"\nsweep {directory.name}: {done} done, {failed} failed, {len(sweep.jobs) - done - failed} not run")
    show_sweep(prepared[0].artifacts, directory.name)
    return stop.exit_code if stop.requested() else int(failed > 0)


_STATES = {0: "done", 130: "interrupted", 143: "interrupted"}


class _Sweep:
    """``sweep.json``: what was swept and how each run ended."""

    def __init__(self, directory: Path, labels: Sequence[str]) -> None:
        self.file = directory / "sweep.json"
        self.jobs: list[dict[str, Any]] = [{"overrides": label, "state": "waiting"} for label in labels]
        self._write()

    def update(self, number: int, **changes: Any) -> None:
        self.jobs[number].update(changes)
        self._write()

    def _write(self) -> None:
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"id": self.file.parent.name, "runs": self.jobs}, indent=1) + "\n")
        os.replace(temporary, self.file)


def _prepared(prepare: Any, number: int, lines: Sequence[str], config_dir: Path | None) -> Any:
    try:
        return prepare(lines, config_dir)
    except BadInput as error:
        where = f"run {number + 1} ({' '.join(map(redact, lines))})"
        raise BadInput([Problem(where, "", str(problem).rstrip(".")) for problem in error.problems]) from error


def _start(
    directory: Path, number: int, lines: Sequence[str], config_dir: Path | None, *, quiet: bool, to_file: bool
) -> subprocess.Popen[Any]:
    command = [sys.executable, "-m", "flows.cli", "run", "--sweep", f"{directory.name}/{number}"]
    command += ["--config-dir", str(config_dir)] if config_dir else []
    command += ["--quiet"] if quiet else []
    # Its own process group: a Ctrl-C at the terminal reaches it once, through the sweep.
    if not to_file:
        return subprocess.Popen([*command, "--", *lines], process_group=0, stdin=subprocess.DEVNULL)
    with (directory / f"run-{number}.log").open("wb") as log:
        streams = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen([*command, "--", *lines], process_group=0, **streams)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
