"""``r1flow cache``: what lies in the store, whether it is whole, what nothing needs, and moving it between machines."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem

_NAMES = "NAME is a run (its id or a part of it), a stage (as in the latest run that has it), or stage/key"


@dataclass(frozen=True)
class _Sub:
    """One subcommand: what it takes, and what its page and the common one say of it."""

    usage: str
    about: str
    options: tuple[str, ...] = ()  # besides --artifacts
    names: tuple[int, int | None] = (0, 0)  # how many


_SUBS = {
    "ls": _Sub(
        "ls [STAGE]",
        "artifacts with size, age and the runs that use them; drafts; what garbage collection would free",
        names=(0, 1),
    ),
    "verify": _Sub(
        "verify [NAME…]",
        "hash every byte, name damaged files and set their artifacts aside (exit code 1)",
        names=(0, None),
    ),
    "gc": _Sub(
        "gc",
        "list what no run needs; --yes removes it. A run in progress and a pin need things as well",
        ("yes", "keep_last", "older_than", "partial", "quarantine"),
    ),
    "pin": _Sub(
        "pin [NAME…]", "gc leaves this alone, with all it was built from; without a name: list pins", names=(0, None)
    ),
    "unpin": _Sub("unpin NAME…", "take pins away", names=(1, None)),
    "export": _Sub(
        "export NAME",
        "one archive: .tar, .tar.gz or .tar.zst (Python 3.14), with all that NAME was built from",
        ("output", "alone"),
        (1, 1),
    ),
    "import": _Sub(
        "import FILE",
        "verify and take in; what is here already is skipped. Take archives from people you trust: that "
        "an artifact is whole does not show that it was built the way its manifest says",
        names=(1, 1),
    ),
}
_OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "yes": (("--yes",), {"action": "store_true", "help": "do it"}),
    "keep_last": (("--keep-last",), {"type": int, "metavar": "N", "help": "only the last N runs count"}),
    "older_than": (
        ("--older-than",),
        {"metavar": "AGE", "help": "runs and artifacts younger than 30d, 12h, 45m count as well"},
    ),
    "partial": (
        ("--partial",),
        {
            "action": "store_true",
            "help": "also drafts nobody works on, untouched for a day (or for the age above)",
        },
    ),
    "quarantine": (
        ("--quarantine",),
        {"action": "store_true", "help": "also damaged artifacts that were set aside"},
    ),
    "output": (
        ("-o", "--output"),
        {"type": Path, "metavar": "FILE", "help": "the archive; its ending says the kind"},
    ),
    "alone": (("--alone",), {"action": "store_true", "help": "without what it was built from"}),
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def define(parser: argparse.ArgumentParser) -> None:
    """The options of ``r1flow cache``."""
    lines = [_line(sub.usage, sub.about) for sub in _SUBS.values()]
    parser.epilog = "\n".join([*lines, "", _NAMES, "r1flow cache SUBCOMMAND --help says more"])
    parser.add_argument("what", choices=tuple(_SUBS), metavar="|".join(_SUBS), help="see below")
    parser.add_argument("names", nargs="*", metavar="NAME", help="see below")
    for name, (flags, settings) in _OPTIONS.items():
        owner = next(what for what, sub in _SUBS.items() if name in sub.options)
        parser.add_argument(*flags, **{**settings, "help": f"{owner}: {settings['help']}"})


def page(arguments: Sequence[str]) -> str:
    """The help of the subcommand that is asked for; "" if none is."""
    what = next((argument for argument in arguments if argument in _SUBS), "")
    if not what or not {"-h", "--help"} & set(arguments):
        return ""
    sub = _SUBS[what]
    parser = argparse.ArgumentParser(
        prog=f"r1flow cache {what}",
        usage=f"r1flow cache {sub.usage} [options]",
        description=sub.about[0].upper() + sub.about[1:] + ".",
        epilog=_NAMES if "NAME" in sub.usage else None,
    )
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help="default: ./artifacts")
    for name in sub.options:
        flags, settings = _OPTIONS[name]
        parser.add_argument(*flags, **settings)
    return parser.format_help()


def _line(usage: str, about: str) -> str:
    return textwrap.fill(about, 118, initial_indent=f"{usage:<18}", subsequent_indent=" " * 18)


def command(options: argparse.Namespace, console: Any) -> int:
    """Run one of the subcommands; its exit code. Raises: BadInput."""
    _check(options)
    from flows.cache import collecting, listing, moving  # they need what --help can do without
    from flows.runs import UNWRITABLE

    handlers = {
        "ls": listing.show,
        "verify": listing.verify,
        "gc": collecting.collect,
        "pin": collecting.pin,
        "unpin": collecting.unpin,
        "export": moving.export,
        "import": moving.take_in,
    }
    try:
        return handlers[options.what](options, console)
    except OSError as error:
        fix = "make it writable, or work on a copy (--artifacts DIR)" if error.errno in UNWRITABLE else ""
        where = options.artifacts if error.filename is None else error.filename
        raise BadInput(
            Problem(f"cache {options.what}", "", str(error.strerror or error), got=str(where), fix=fix)
        ) from error


def age(text: str) -> float:
    """Seconds of ``30d``, ``12h``, ``45m``, ``2w``, ``90s``. Raises: BadInput."""
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS and number.isascii() and number.isdigit():
        return float(number) * _UNITS[unit]
    raise BadInput(Problem("cache", "--older-than", "is no age", got=text, fix="write 30d, 12h or 45m"))


def _check(options: argparse.Namespace) -> None:
    """Options and names belong to the subcommand."""
    sub = _SUBS[options.what]
    least, most = sub.names
    for owner, other in _SUBS.items():
        for name in other.options:
            if name not in sub.options and getattr(options, name) not in (None, False):
                flag = f"--{name.replace('_', '-')}"
                raise BadInput(
                    Problem("cache", flag, f"is an option of {owner}, not of {options.what}", fix="leave it out")
                )
    if len(options.names) < least or (most is not None and len(options.names) > most):
        wanted = "a name" if most == 1 or least else "no name"
        raise BadInput(
            Problem("cache", options.what, f"takes {wanted}", got=options.names, fix="see r1flow cache --help")
        )
    if options.keep_last is not None and options.keep_last < 0:
        raise BadInput(
            Problem("cache", "--keep-last", "must not be negative", got=options.keep_last, fix="write 0 or more")
        )
