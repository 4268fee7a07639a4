"""The command ``r1flow``. Exit codes: 0 ok, 1 a stage failed or was refused, 2 bad input, 130 or 143 interrupted."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows import cache
from flows.errors import BadInput, did_you_mean
from flows.output import sturdy_output

INTERRUPTED = 128 + signal.SIGINT
DESCRIPTION = """\
r1flow runs DeepSeek-R1's post-training pipeline: cold start, reinforcement learning on verifiable rewards,
rejection sampling, a second round for helpfulness and safety, and an evaluation after each.

  r1flow run                  the whole pipeline with a tiny model, minutes on two CPU cores; run again, it is reused
  r1flow plan                 what a run would do, and why
  r1flow report               where the last run's report lies, and its table
  r1flow doctor               what went wrong in training, why, and what to do
  r1flow chat rl_2            talk to a trained model"""

DOCTOR_EPILOG = """\
Examines what the stages of a run logged, finished or not: rewards that are all 0, groups without signal, truncation,
template and tags, log-probabilities of engine and trainer, entropy, KL, lengths, skipped updates, slow rewards,
threads, and rewards that are exploited. The same checks run during `r1flow run`, every few steps.

exit codes: 0 no findings, 1 at least one, 2 no such run"""

RUN_EPILOG = """\
overrides, key=value:
  pipeline=smoke              another option of a group (conf/<group>/<option>.yaml): pipeline, model, data, reward,
                              algorithm, curriculum, environment, engine, launcher, tracking, sweep, experiment
  algorithm=dapo              reaches every stage that uses it
  algorithm.surrogate.eps_high=0.3   a setting of it, for every stage
  rl_1.steps=40               a setting of one stage
  rl_1.algorithm=dapo         another option for one stage
  ~rl_2.reward.terms.length   takes a setting away
  gate=stop                   end the run where a stage's model is no better than the one before, or paid for it
                              (warn: say so; off); rl_1.gate=stop for one stage
  seed=1                      of the whole run; also: artifacts=DIR, orchestrator=inline, allow=[my_package]
  -m rl_1.lr=1e-4,3e-4 seed=range(3)   every combination, each in a process of its own; common stages are built once;
                              the same command goes on where it stopped
  -m sweep=optuna rl_1.lr=interval(1e-4,1e-3)   a search for the best objective; sweep=submitit: on Slurm
  objective.metric=pass@1     what a run is worth, for --json and searches; or weights: {pass@1: 1, length: -0.01}

exit codes: 0 ok, 1 a stage failed or the gate stopped the run, 2 bad input (nothing was run), 130 interrupted (the same
command goes on)"""


PLAN_EPILOG = f"""\
Times, disk and memory come from earlier artifacts of the same stages, scaled by their work; "from" has the artifact's
key. The range is from an idle machine to a crowded one. What was never built here has figures with --measure.

{RUN_EPILOG.partition("exit codes")[0].rstrip()}

exit codes: 0 ok, 2 bad input"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the user's own components, after the installed packages
    with sturdy_output() as output:
        code = _answered(arguments, ends=argv is None)
        output.flush()
        if output.problem:
            print(f"r1flow: the output can't be written: {output.problem}.", file=sys.stderr)
            return code if arguments[:1] == ["run"] else code or 1
        return code


def _answered(arguments: list[str], *, ends: bool) -> int:
    """The exit code; where the process ends with it, another Ctrl-C no longer turns it into a death by signal."""
    try:
        if (code := _dispatch(arguments)) > 128 and ends:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except BadInput as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return 2
    except SyntaxError as error:  # of the user's own components, whose source is read before anything runs
        print(f"{error.filename}:{error.lineno}: is not Python: {error.msg}. Fix: correct the file.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    top = _top_parser()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        top.print_help()
        return 0 if arguments else 2
    name = arguments[0]
    if name == "--version":
        from importlib.metadata import version

        print(f"r1flow {version('r1flow')}")
        return 0
    if arguments[:2] == ["envs", "serve"]:
        from flows.env_server import main as serve

        return serve(arguments[2:])
    if name not in _COMMANDS:
        print(f"r1flow: no such command (got {name!r}). Fix: {did_you_mean(name, _COMMANDS)}.", file=sys.stderr)
        return 2
    if name == "cache" and (page := cache.page(arguments[1:])):
        print(page, end="")
        return 0
    about, define, command = _COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"r1flow {name}",
        description=about,
        epilog=_EPILOGS.get(define),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    define(parser)
    try:
        options = parser.parse_intermixed_args(arguments[1:])
    except SystemExit as end:  # argparse has said why
        return int(end.code or 0)
    return command(options)


def _top_parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<8} {about.splitlines()[0]}" for name, (about, _, _) in _COMMANDS.items())
    return argparse.ArgumentParser(
        prog="r1flow",
        usage="r1flow COMMAND [options]   (r1flow COMMAND --help says more)",
        description=DESCRIPTION,
        epilog=f"commands:\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )


# --- options --------------------------------------------------------------------------------------------------------


def _define_composed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see below")
    parser.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="your own groups; its files come before the built-in ones"
    )
    parser.add_argument("--config", action="store_true", help="print the composed configuration and stop")


def _define_plan(parser: argparse.ArgumentParser) -> None:
    _define_composed(parser)
    parser.add_argument("--measure", action="store_true", help="calibrate estimates: a few seconds on the real model")
    parser.add_argument(
        "--advise", action="store_true", help="is RL what the model needs? The decision guide with measured figures"
    )


def _define_run(parser: argparse.ArgumentParser) -> None:
    _define_composed(parser)
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of values separated by commas"
    )
    parser.add_argument(
        "-j", "--jobs", type=_positive, metavar="N", help="runs at a time with -m (default: sweep.launcher's, 1)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show failures and the result only")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line instead, the last with the objective, for programs"
    )
    parser.add_argument("--sweep", default="", help=argparse.SUPPRESS)
    parser.add_argument("--leash", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--events-to", type=int, metavar="FD", help=argparse.SUPPRESS)


def _define_deploy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of every run; its parameters may say others")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own groups")
    parser.add_argument("--name", default="r1flow", help="of the deployment (default r1flow)")
    schedule = parser.add_mutually_exclusive_group()
    schedule.add_argument("--cron", metavar="CRON", help="when to run: '0 3 * * *' is every night at three")
    schedule.add_argument("--every", type=_positive, metavar="SECONDS", help="how often to run")


def _define_artifacts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"), metavar="DIR", help="default: ./artifacts")


def _define_ui(parser: argparse.ArgumentParser) -> None:
    _define_artifacts(parser)
    parser.add_argument("--stop", action="store_true", help="end the servers that were started for this directory")


def _define_status(parser: argparse.ArgumentParser) -> None:
    _define_artifacts(parser)
    parser.add_argument("-n", type=_positive, default=20, metavar="N", help="the last N runs (default 20)")


def _define_report(parser: argparse.ArgumentParser) -> None:
    _define_artifacts(parser)
    parser.add_argument(
        "run", nargs="?", help="id of a run or sweep, or a part of it; default: the latest run that has a report"
    )
    parser.add_argument("--metric", default="pass@1", metavar="NAME", help="of a sweep's table (default pass@1)")
    parser.add_argument(
        "--against",
        default="first",
        metavar="ARM",
        help="arm of a sweep the others are tested against: first, best, LABEL",
    )


def _define_doctor(parser: argparse.ArgumentParser) -> None:
    _define_artifacts(parser)
    parser.add_argument("run", nargs="?", help="id of a run, or a part of it; default: the latest")
    parser.add_argument("--json", action="store_true", help="findings with all figures and samples, for programs")


def _define_chat(parser: argparse.ArgumentParser) -> None:
    _define_artifacts(parser)
    parser.add_argument("model", metavar="STAGE|PATH", help="a stage of your latest run, or a model directory")
    parser.add_argument("--max-new-tokens", type=_positive, default=512, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", action="store_true", help="remember the conversation; else each line is a fresh question"
    )


def _define_cache(parser: argparse.ArgumentParser) -> None:
    _define_artifacts(parser)
    cache.define(parser)


def _define_export(parser: argparse.ArgumentParser) -> None:
    from flows.export import EPILOG, define

    _define_artifacts(parser)
    parser.epilog = EPILOG
    define(parser)


def _define_data(parser: argparse.ArgumentParser) -> None:
    from flows.data_check import define

    define(parser)


def _define_envs(parser: argparse.ArgumentParser) -> None:
    from flows.envs import define

    define(parser)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expects a whole number of at least 1, got {text!r}")
    return int(text)


# --- commands; each imports what it needs, so that --help is instant -------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    if options.config:
        return _print_config(options)
    if options.multirun:
        from flows.sweep.pool import run_sweep

        shown = {"quiet": options.quiet, "as_json": options.json}
        return run_sweep(options.overrides, options.config_dir, jobs=options.jobs, **shown)
    from flows.leash import EventStream, stop_when_input_ends
    from flows.run import run

    if options.leash:
        stop_when_input_ends()
    stream = None if options.events_to is None else EventStream(options.events_to)
    shown = {"quiet": options.quiet, "as_json": options.json, "listener": stream}
    return run(options.overrides, options.config_dir, sweep=options.sweep, **shown)


def _deploy(options: argparse.Namespace) -> int:
    from flows.prefect_server import point_prefect_at_its_server
    from flows.run import prepare

    prepared = prepare(options.overrides, options.config_dir)
    print(f"Prefect is at {point_prefect_at_its_server(prepared.artifacts.resolve() / 'prefect')}", flush=True)
    from flows.deploy import serve  # imports Prefect, which reads its settings then

    serve(options.name, options.overrides, options.config_dir, cron=options.cron, every_s=options.every)
    return 0


def _plan(options: argparse.Namespace) -> int:
    if options.config:
        return _print_config(options)
    from components.artifacts import ArtifactStore
    from flows.build import ALLOWED
    from flows.estimate import History
    from flows.launch.torchrun import cores
    from flows.notes import notes
    from flows.plan import costs_of, make_plan, plan_table
    from flows.run import prepare

    prepared = prepare(options.overrides, options.config_dir, to_plan=True)
    for warning in prepared.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for note in notes(prepared.config, prepared.specs):
        print(f"note: {note}", file=sys.stderr)
    store = ArtifactStore(prepared.artifacts / "cache")
    if options.advise:
        from flows.advise import advise_run, print_advice

        print_advice(advise_run(prepared.specs, store, (*ALLOWED, *prepared.allow)), _console())
        return 0
    plan = make_plan(prepared.specs, store, ignore_code=prepared.ignores_code)
    building = [stage.name for stage in plan if stage.state != "reused"]
    history = History(prepared.specs, store)
    estimates = {s.name: found for s in prepared.specs if s.name in building and (found := history(s)) is not None}
    if options.measure and len(estimates) < len(building):
        from flows.calibrate import calibrate, from_rates

        rates = calibrate(prepared.specs, store, (*ALLOWED, *prepared.allow))
        estimates = {s.name: from_rates(s, rates) for s in prepared.specs if rates and s.name in building} | estimates
        if rates:
            print(f"measured: {rates.sampled_s:,.0f} tokens sampled and {rates.trained_s:,.0f} trained on a second")
    _console().print(plan_table(prepared.config.pipeline, plan, estimates))
    lines, wrong = costs_of(prepared.specs, plan, estimates, prepared.artifacts, cores())
    for line in lines if building else ():
        print(line)
    for warning in wrong:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _print_config(options: argparse.Namespace) -> int:
    from flows.compose import compose

    print(compose(options.overrides, options.config_dir).unresolved, end="")
    return 0


def _status(options: argparse.Namespace) -> int:
    from flows.status import show_status

    show_status(options.artifacts, _console(), limit=options.n)
    return 0


def _report(options: argparse.Namespace) -> int:
    from flows.run import show_report
    from flows.runs import find_run, list_runs
    from flows.sweep_table import find_sweep, list_sweeps, show_sweep

    console = _console()
    if options.run and (sweep := find_sweep(options.artifacts, options.run)):
        if show_sweep(options.artifacts, sweep, options.metric, options.against):
            return 0
        print(
            f"report: no run of sweep {sweep} has a report. Fix: wait for one, or look at r1flow status.",
            file=sys.stderr,
        )
        return 2
    if options.run:
        records = [find_run(options.artifacts, options.run, sweeps=list_sweeps(options.artifacts))]
    else:
        records = list_runs(options.artifacts)[::-1]
    if any(show_report(record, console) for record in records):
        return 0
    missing = f"run {options.run} has no report" if options.run else f"no run in {options.artifacts} has a report"
    print(f"report: {missing}. Fix: finish a run first, r1flow run.", file=sys.stderr)
    return 2


def _doctor(options: argparse.Namespace) -> int:
    from flows.doctor import diagnose

    return diagnose(options.artifacts, options.run, _console(), as_json=options.json)


def _ui(options: argparse.Namespace) -> int:
    from flows.ui import show_interfaces

    return show_interfaces(options.artifacts.resolve(), _console(), stop=options.stop)


def _chat(options: argparse.Namespace) -> int:
    from flows.chat import chat, find_model

    if options.temperature < 0:
        print(
            f"chat: --temperature must not be negative (got {options.temperature}). Fix: 0 is greedy.", file=sys.stderr
        )
        return 2
    chat(
        find_model(options.artifacts, options.model),
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        seed=options.seed,
        keep=options.keep,
        console=_console(),
    )
    return 0


def _cache(options: argparse.Namespace) -> int:
    return cache.command(options, _console())


def _export(options: argparse.Namespace) -> int:
    from flows.export import export

    return export(options, _console())


def _data(options: argparse.Namespace) -> int:
    from flows.data_check import check_data

    return check_data(options, _console())


def _envs(options: argparse.Namespace) -> int:
    from flows.envs import envs

    return envs(options, _console())


def _console() -> Any:
    """A console that doesn't cut tables where there is no terminal to fit."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


_Define = Callable[[argparse.ArgumentParser], None]
_EPILOGS: dict[Any, str] = {_define_run: RUN_EPILOG, _define_plan: PLAN_EPILOG, _define_doctor: DOCTOR_EPILOG}
_COMMANDS: dict[str, tuple[str, _Define, Callable[[argparse.Namespace], int]]] = {
    "run": ("Run a pipeline; finished stages are reused, interrupted ones go on.", _define_run, _run),
    "plan": ("Show what a run would reuse or build, why, and what it will take; nothing runs.", _define_plan, _plan),
    "deploy": ("Serve a pipeline to Prefect: on a schedule, or started from its pages.", _define_deploy, _deploy),
    "status": ("List runs and artifacts.", _define_status, _status),
    "report": ("Print a run's evaluation table and where its report lies.", _define_report, _report),
    "doctor": ("Name what went wrong in a run's training, with evidence and remedy.", _define_doctor, _doctor),
    "ui": ("Open the workflow and tracking interfaces of this directory's runs.", _define_ui, _ui),
    "chat": ("Talk to a trained model; reads lines from standard input.", _define_chat, _chat),
    "export": ("Write a finished model as a directory for other programs, with a model card.", _define_export, _export),
    "data": ("Check a file of your own: what a run would make of it, or what is wrong.", _define_data, _data),
    "envs": ("Make environments of recorded transcripts of agents; check and list them.", _define_envs, _envs),
    "cache": ("List, verify, clean, pin, export or import finished stages.", _define_cache, _cache),
}


if __name__ == "__main__":
    sys.exit(main())
