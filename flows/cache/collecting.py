"""``r1flow cache gc``, ``pin`` and ``unpin``."""

from __future__ import annotations

import argparse
from typing import Any

from flows.cache import age, garbage
from flows.cache.pins import make_pins, read_pins, remove_pins, resolve
from flows.runs import held
from flows.status import plain_table, size_text


def collect(options: argparse.Namespace, console: Any) -> int:
    """Print what nothing needs; with ``--yes`` remove it."""
    from rich.text import Text  # a tenth of a second, which --help can do without

    older = age(options.older_than) if options.older_than is not None else None
    rules = garbage.Rules(options.keep_last, older, options.partial, options.quarantine)
    found = (garbage.collect if options.yes else garbage.find_garbage)(options.artifacts, rules)
    if found.items:
        table = plain_table("removed" if options.yes else "to remove", ("what", "stage", "key", "size", "why"))
        for item in found.items:
            table.add_row(item.kind, item.stage, item.key, size_text(item.size), Text(item.why))
        console.print(table)
    for item in found.in_use:
        text = f"{item.stage}/{item.key}: a process works on it, left where it is"
        console.print(text, markup=False, highlight=False)
    kept = f"{found.kept} artifacts stay, {size_text(found.kept_bytes)}"
    if options.yes:
        text = f"{len(found.items)} removed, {size_text(found.size)} freed; {kept}"
    elif found.items:
        text = f"{len(found.items)} to remove, {size_text(found.size)}; {kept}. Nothing was removed: --yes does it"
    else:
        text = f"nothing to remove; {kept}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def pin(options: argparse.Namespace, console: Any) -> int:
    """Pin runs and artifacts, or list the pins."""
    if not options.names:
        for target, entry in sorted(read_pins(options.artifacts).items(), key=lambda item: item[1]["since"]):
            why = f"  ({entry['why']})" if entry["why"] else ""
            console.print(f"{target}  since {entry['since']}{why}", markup=False, highlight=False)
        return 0
    targets = [resolve(options.artifacts, name) for name in options.names]
    with held(options.artifacts, exclusive=False):
        new = make_pins(options.artifacts, targets)
    for target in targets:
        console.print(f"{target}: pinned{'' if target in new else ' already'}", markup=False, highlight=False)
    return 0


def unpin(options: argparse.Namespace, console: Any) -> int:
    """Take pins away."""
    pins = read_pins(options.artifacts)
    targets = []
    for name in options.names:  # also what is no longer there
        exact = [pin for pin in pins if name in (pin.run, f"{pin.stage}/{pin.key}")]
        targets.append(exact[0] if exact else resolve(options.artifacts, name))
    gone = remove_pins(options.artifacts, targets)
    for target in targets:
        text = f"{target}: {'unpinned' if target in gone else 'was not pinned'}"
        console.print(text, markup=False, highlight=False)
    return 0
