"""``r1flow envs serve``: an environment in a process of its own."""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from socket import gaierror
from typing import Any

from flows.errors import BadInput, Problem, parted

DESCRIPTION = """\
Serve an environment over HTTP to runs that have environment=remote: for one that must not share the trainer's process,
needs other packages, or another machine. Ends with Ctrl-C; episodes that are open end with it."""

EPILOG = """\
  r1flow envs serve environment=shell                    prints address, digest and token
  export R1FLOW_ENVS_TOKEN=...                           in the shell of the run; or in both, before
  r1flow run environment=remote environment.url=http://127.0.0.1:8765

The token is read from R1FLOW_ENVS_TOKEN, or made up and printed. Without TLS it crosses a network in clear: leave the
host as it is and use a tunnel (ssh -L), or put a proxy with TLS before it.

exit codes: 0 ended on request, 2 bad input"""

_REMOTE = "components.environments.remote.client.RemoteEnvironment"
_HOSTS = "an address of this machine: 127.0.0.1, ::1, or 0.0.0.0 for all of them"


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments."""
    parser = argparse.ArgumentParser(
        prog="r1flow envs serve",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="environment=NAME, environment.max_turns=8 …")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own groups")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="default 8765; 0: a free one")
    parser.add_argument("--limit", type=int, default=1024, metavar="N", help="episodes at one time (default 1024)")
    parser.add_argument(
        "--grace", type=float, default=30.0, metavar="S", help="seconds until episodes of a client that is gone end"
    )
    parser.add_argument(
        "--idle", type=float, default=3600.0, metavar="S", help="seconds until episodes that nobody asks for end"
    )
    parser.add_argument(
        "--isolate",
        choices=("auto", "always", "never"),
        default="auto",
        help="a process per episode; auto: for environments from outside r1flow",
    )
    parser.add_argument(
        "--memory-mib", type=int, default=0, metavar="N", help="address space of such a process; 0: all"
    )
    try:
        options = parser.parse_intermixed_args(list(arguments))
    except SystemExit as end:  # argparse has said why
        return int(end.code or 0)
    return serve(options)


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    if problems := [*_figure_problems(options)]:
        raise BadInput(problems)
    from components.environments.remote.hosting import Hosting
    from components.environments.remote.server import EnvironmentServer
    from components.environments.remote.wire import TOKEN_RULE, TOKEN_VARIABLE, is_token

    given = os.environ.get(TOKEN_VARIABLE)
    if given and not is_token(given):
        fix = "unset it, and a token is made up and printed"
        raise BadInput(Problem("envs serve", TOKEN_VARIABLE, f"holds no token: one has {TOKEN_RULE}", fix=fix))
    token = given or secrets.token_urlsafe(24)
    environment, node = _built(options.overrides, options.config_dir)
    digest = _digest(node)
    served = _isolated(environment, options)
    hosting = Hosting(served, limit=options.limit, grace=options.grace, idle=options.idle)
    try:
        server = EnvironmentServer(hosting, token=token, digest=digest, host=options.host, port=options.port)
    except (OSError, UnicodeError) as error:
        raise BadInput(_not_listening(options, error)) from None
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: threading.Thread(target=server.close, daemon=True).start())
    if not given:
        print(f"export {TOKEN_VARIABLE}={token}")
    print(f"environment=remote environment.url={server.url} environment.digest={digest}", flush=True)
    server.serve()
    for part in {id(x): x for x in (served, environment)}.values():
        getattr(part, "close", lambda: None)()
    print("environment server: ended", file=sys.stderr)
    return 0


def _figure_problems(options: argparse.Namespace) -> Iterator[Problem]:
    for name, fits, text, fix in (
        ("limit", options.limit >= 1, "must be at least 1", "--limit 1024 is usual"),
        ("grace", options.grace > 0, "must be a positive number of seconds", "--grace 30 is usual"),
        ("idle", options.idle > 0, "must be a positive number of seconds", "--idle 3600 is usual"),
        (
            "memory-mib",
            0 <= options.memory_mib < 1 << 40,
            "is no size",
            "write the MiB of an episode, or 0 for no limit",
        ),
        ("port", 0 <= options.port <= 65535, "must lie in 0 to 65535", "another port, or 0 for a free one"),
        ("host", bool(options.host.strip()), "is empty", _HOSTS),
    ):
        if not fits:
            yield Problem("envs serve", f"--{name}", text, got=getattr(options, name.replace("-", "_")), fix=fix)


def _not_listening(options: argparse.Namespace, error: Exception) -> Problem:
    """Whether it is the host or the port that cannot be listened at."""
    elsewhere = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    if isinstance(error, gaierror | UnicodeError) or (isinstance(error, OSError) and error.errno in elsewhere):
        text = f"{options.host!r} is no address of this machine ({error})"
        return Problem("envs serve", "--host", text, fix=_HOSTS)
    text = f"{options.host}:{options.port} cannot be listened at ({error})"
    return Problem("envs serve", "--port", text, fix="another port, or 0 for a free one")


def _built(overrides: Sequence[str], config_dir: Path | None) -> tuple[Any, Mapping[str, Any]]:
    """The environment that these overrides choose, and its node."""
    from flows.build import ALLOWED, build
    from flows.compose import compose
    from flows.errors import errors
    from flows.preflight import check_node

    config = compose(overrides, config_dir)
    node, allow = config.root["environment"], (*ALLOWED, *(config.root.get("allow") or ()))
    if node.get("_target_") == _REMOTE:  # before its own check, which asks the other server
        text = "is a server's already: there is nothing to serve"
        fix = "serve what that one serves, environment=NAME, or give its url to the run"
        raise BadInput(Problem("environment", "", text, fix=fix))
    problems, values = check_node("environment", "", node, allow)
    if found := errors(problems):
        raise BadInput(found)
    try:
        environment = build(values, allow=allow)
    except (ValueError, ImportError) as error:
        text, fix = parted(str(error))
        raise BadInput(Problem("environment", "", text, fix=fix or "correct its settings")) from error
    if not (environment.stop or getattr(environment, "chat", False)):
        text = "has no turns: there is nothing to serve"
        raise BadInput(Problem("environment", "", text, fix="choose one with tools: environment=shell"))
    return environment, node


def _isolated(environment: Any, options: argparse.Namespace) -> Any:
    foreign = getattr(environment, "foreign", not type(environment).__module__.startswith("components."))
    if options.isolate == "never" or (options.isolate == "auto" and not foreign):
        return environment
    from components.environments.remote.forks import Forked

    return Forked(environment, memory_mib=options.memory_mib)


def _digest(node: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of the settings of what is served."""
    return hashlib.sha256(json.dumps(node, sort_keys=True, default=str).encode()).hexdigest()[:12]
