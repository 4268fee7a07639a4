"""``r1flow cache``: what lies in the store, whether it is whole, what nothing needs, and moving it between machines."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem

EPILOG = """\
ls [STAGE]            artifacts with size, age and the runs that use them; drafts; what garbage collection would free
verify [NAME…]        hash every byte, name damaged files and set their artifacts aside (exit code 1)
gc                    list what no run needs; --yes removes it. A run in progress and a pin need things as well
  --keep-last N         only the last N runs count
  --older-than AGE      runs and artifacts younger than 30d, 12h, 45m count as well
  --partial             also drafts nobody works on, untouched for a day (or for the age above)
  --quarantine          also damaged artifacts that were set aside
pin NAME…, unpin NAME…  gc leaves this alone, with all it was built from; without a name: list
export NAME -o FILE   one archive: .tar, .tar.gz or .tar.zst (Python 3.14), with all that NAME was built from
  --alone               without that
import FILE           verify and take in; what is here already is skipped. Take archives from people you trust: that
                      an artifact is whole does not show that it was built the way its manifest says

NAME is a run (its id or a part of it), a stage (as in the latest run that has it), or stage/key"""

_TAKES = {  # options besides --artifacts, and how many names
    "ls": ((), (0, 1)),
    "verify": ((), (0, None)),
    "gc": (("yes", "keep_last", "older_than", "partial", "quarantine"), (0, 0)),
    "pin": ((), (0, None)),
    "unpin": ((), (1, None)),
    "export": (("output", "alone"), (1, 1)),
    "import": ((), (1, 1)),
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def define(parser: argparse.ArgumentParser) -> None:
    """The options of ``r1flow cache``."""
    parser.epilog = EPILOG
    parser.add_argument("what", choices=tuple(_TAKES), metavar="|".join(_TAKES), help="see below")
    parser.add_argument("names", nargs="*", metavar="NAME", help="see below")
    parser.add_argument("--yes", action="store_true", help="gc: do it")
    parser.add_argument("--keep-last", type=int, metavar="N")
    parser.add_argument("--older-than", metavar="AGE")
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("--quarantine", action="store_true")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--alone", action="store_true")


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
    taken, (least, most) = _TAKES[options.what]
    for owner, (theirs, _) in _TAKES.items():
        for name in theirs:
            if name not in taken and getattr(options, name) not in (None, False):
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
