"""``r1flow envs build|check|ls|record``: environments made of recorded transcripts."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem

_COMMAND_S = 10.0  # for a recorded command, which is tried twice
_LINE_S = 10.0
EPILOG = """\
  r1flow envs record --to transcripts.jsonl          transcripts of built-in experts, to try the rest with
  r1flow envs build transcripts.jsonl --to envs      replay, verify, deduplicate; writes envs/tasks.jsonl
  r1flow envs ls envs                                what there is, and why the rest was left out
  r1flow envs check envs                             do the solutions still pass here?
  r1flow run pipeline=agent_tasks data.path=envs/tasks.jsonl environment=agent_tags_shell             train on it
  r1flow envs serve environment=shell                an environment in a process of its own; serve --help

Forms (--format): transcripts, one JSON object a line:
  {"instruction": "…", "actions": [{"shell": "sort a > b", "output": "", "exit_code": 0}, …],
   "files": {"a": "…"} or "database": "CREATE TABLE …", "id", "finished", "success", "root"}
messages: {"messages": […]} with tool calls; rollouts: those of this project's stages (--tasks names their worlds);
shell: a terminal's text, a file a session. auto tells them apart. What the beginning was is read from what the actions
showed where the recording does not say it.

A transcript is kept if its solution passes three replays of three and one with another clock, order and locale; doing
nothing, removing everything and broken solutions fail; and nothing like it is there already. Recorded commands run in
the shell's sandbox only (bubblewrap); where none works, nothing is run.

exit codes: 0 ok, 1 nothing was kept, or a task of the folder fails, 2 bad input or no sandbox"""


def define(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("what", choices=("build", "check", "ls", "record"), help="see below")
    parser.add_argument("path", nargs="?", type=Path, metavar="TRANSCRIPTS|FOLDER", help="a file or folder")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="build, record: where to write")
    parser.add_argument("--format", default="auto", metavar="FORM", help=_FORMS)
    parser.add_argument("--tasks", type=Path, metavar="FILE", help="tasks of rollouts: a tasks/SPLIT.jsonl")
    parser.add_argument("--replays", type=int, default=3, metavar="N", help="of each solution (default 3)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="replays side by side (default 2)")
    parser.add_argument("--replace", action="store_true", help="write over a folder of environments")
    parser.add_argument("--model", type=Path, metavar="DIR", help=_MODEL)
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="episodes of each task (default 8)")
    parser.add_argument("--rates", type=float, nargs=2, default=(0.0, 1.0), metavar=("LOW", "HIGH"), help=_RATES)
    parser.add_argument("--seed", type=int, default=0, help="record, and of the policy's episodes")
    parser.add_argument("-n", type=int, default=60, metavar="N", help="record: how many (default 60)")
    parser.add_argument("--families", metavar="A,B", help="record: of these jobs only")
    parser.add_argument("--no-look", action="store_true", help="record: experts that act without having looked")
    parser.add_argument("--traces", type=float, default=1.0, metavar="SHARE", help=_TRACES)
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help=_SET)


_FORMS = "auto (default), transcripts, messages, rollouts or shell"
_MODEL = "build: measure how often this policy, a model directory, solves each task"
_RATES = "keep what the policy solves more often than LOW and less often than HIGH (default: sometimes, not always)"
_TRACES = "build: share of the tasks whose solution stands beside them, for a cold start (default 1)"
_SET = "settings of the policy's episodes: environment=agent, model.max_new_tokens=512"


def envs(options: argparse.Namespace, console: Any) -> int:
    """Run one of the four. Raises BadInput."""
    _check_numbers(options)
    if options.what == "record":
        from flows.envs_record import record_experts

        return record_experts(options, console)
    if options.path is None:
        what = "the transcripts" if options.what == "build" else "the folder"
        raise bad("path", f"{options.what} needs {what}", f"r1flow envs {options.what} PATH")
    return {"build": _build, "check": _check, "ls": _ls}[options.what](options, console)


def _build(options: argparse.Namespace, console: Any) -> int:
    from components.environments.from_trajectories.build import build, needs_shell, working_shell
    from components.environments.from_trajectories.importing import FORMS, Unusable, read_transcripts
    from components.environments.from_trajectories.rows import write_folder
    from components.environments.tools.host import Broken
    from components.environments.tools.shell import Shell
    from components.rewards.state import reached

    if options.format not in FORMS:
        raise bad("--format", f"no such form (got {options.format!r})", f"one of {', '.join(FORMS)}")
    folder = _free_folder(options)
    try:
        transcripts = read_transcripts(options.path, options.format, _tasks(options.tasks))
        shell = working_shell(Shell(seconds=_COMMAND_S)) if needs_shell(transcripts) else None
        progress = _progress(console)
        built = build(
            transcripts, judge=reached, shell=shell, replays=options.replays, jobs=options.jobs, progress=progress
        )
    except Unusable as error:
        raise said(error) from error
    except Broken as error:
        raise bad("sandbox", str(error), "") from error
    facts: dict[str, Any] = {"source": str(options.path), "replays": options.replays}
    if options.model is not None and built.environments:
        from flows.envs_rates import measured

        built, rates = measured(built, options, console)
        facts |= rates
    report = write_folder(folder, built.environments, built.refused, facts, traces=options.traces)
    counts = f"{_counted(report['transcripts'], 'transcript')}, {_counted(report['environments'], 'environment')}"
    console.print(f"{options.path}: {counts}", markup=False)
    _print_reasons(report["rejected"], console)
    console.print(f"written to {folder}; `r1flow envs ls {folder}` lists them", markup=False)
    if built.environments:
        shell = " environment=agent_tags_shell" if "shell" in report["families"] else ""
        console.print(
            f"train on it: r1flow run pipeline=agent_tasks data.path={folder}/tasks.jsonl{shell}", markup=False
        )
    return 0 if built.environments else 1


def _check(options: argparse.Namespace, console: Any) -> int:
    from components.environments.from_trajectories.build import check_kept, working_shell
    from components.environments.tools.host import Broken
    from components.environments.tools.shell import Shell
    from components.rewards.state import reached

    kept, _, _ = _read(options.path)
    wrong = 0
    try:
        needed = any("shell" in task.row["meta"]["tools"] for task in kept)
        shell = working_shell(Shell(seconds=_COMMAND_S)) if needed else None
        for task in kept:
            if (problem := check_kept(task, judge=reached, shell=shell, replays=options.replays)) is not None:
                wrong += 1
                console.print(f"{task.row['id']}: {problem}", markup=False)
    except Broken as error:
        raise bad("sandbox", str(error), "") from error
    console.print(f"{options.path}: {len(kept) - wrong} of {len(kept)} tasks are as they should be", markup=False)
    return 1 if wrong else 0


def _ls(options: argparse.Namespace, console: Any) -> int:
    from rich.table import Table
    from rich.text import Text

    kept, refused, report = _read(options.path)
    table = Table("id", "level", "calls", "changes", "pass rate", "instruction", box=None)
    for task in kept:
        meta = task.row["meta"]
        rate = f"{meta['pass_rate']:.2f}" if "pass_rate" in meta else "-"
        conditions = str(sum(len(part.get("files", part)) for part in meta["check"].values()))
        cells = (
            task.row["id"],
            str(task.row["level"]),
            str(len(task.actions)),
            conditions,
            rate,
            task.row["prompt"][:80],
        )
        table.add_row(*map(Text, cells))
    console.print(table)
    counts = f"{_counted(report['environments'], 'environment')} of {_counted(report['transcripts'], 'transcript')}"
    console.print(counts, markup=False)
    _print_reasons(Counter(row["reason"] for row in refused), console)
    return 0


def _free_folder(options: argparse.Namespace) -> Path:
    from components.environments.from_trajectories.rows import FILES

    folder = options.to
    if folder is None:
        raise bad("--to", "build needs a folder to write to", "--to FOLDER")
    if folder.exists() and not folder.is_dir():
        raise bad("--to", f"{folder} is a file", "name a folder")
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if there and (not options.replace or set(there) - set(FILES)):
        raise bad("--to", f"{folder} is not empty", "another folder, or --replace for one of environments")
    return folder


def _tasks(path: Path | None) -> dict[str, Any]:
    from components.artifacts import read_jsonl

    if path is None:
        return {}
    if not path.is_file():
        raise bad("--tasks", f"{path}: no such file", "tasks/train.jsonl of the stage curate, for example")
    return {str(row["id"]): row for row in read_jsonl(path)}


def _read(folder: Path) -> Any:
    from components.environments.from_trajectories.rows import read_folder

    try:
        return read_folder(folder)
    except (ValueError, KeyError, OSError) as error:
        raise said(error) from error


def _print_reasons(reasons: Any, console: Any) -> None:
    from components.environments.from_trajectories.transcript import REASONS

    for reason, n in sorted(reasons.items(), key=lambda item: -item[1]):
        console.print(f"  {n:4} {reason:16} {REASONS[reason]}", markup=False)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _progress(console: Any) -> Any:
    """Counts in place on a terminal, elsewhere a line now and then."""
    last = time.monotonic()

    def told(done: int, of: int) -> None:
        nonlocal last
        if sys.stderr.isatty():
            print(f"\r{done}/{of}", end="\n" if done == of else "", file=sys.stderr, flush=True)
        elif time.monotonic() - last > _LINE_S:
            last = time.monotonic()
            print(f"envs build: {done} of {of} transcripts", file=sys.stderr, flush=True)

    return told


def _check_numbers(options: argparse.Namespace) -> None:
    for name in ("replays", "jobs", "samples", "n"):
        if getattr(options, name) < 1:
            raise bad(f"--{name}", f"must be at least 1 (got {getattr(options, name)})", "a whole number")
    if not 0 <= options.traces <= 1:
        raise bad("--traces", f"is a share between 0 and 1 (got {options.traces})", "0.3, for example")


def said(error: Exception) -> BadInput:
    """What a component raised, in the form of bad input."""
    text, _, fix = str(error).partition(" Fix: ")
    return bad("envs", text.rstrip("."), fix)


def bad(where: str, problem: str, fix: str) -> BadInput:
    """One problem of the command line or of a file."""
    if not fix:
        problem, _, fix = problem.partition(" Fix: ")
    return BadInput(Problem(where, "", problem.rstrip("."), fix=fix))
