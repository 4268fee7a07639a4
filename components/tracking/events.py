"""What the driver tells its listeners: plain dictionaries with ``event`` and, for a stage's own, ``stage``.

    run       state started | done | failed | interrupted; with started: run, pipeline, seed, stages, params, overrides
    stage     state waiting | running | reused | done | failed | interrupted | skipped; why, wall_s, metrics,
              artifact {key, path, digest}
    progress  done, total, shown {name: number or text}
    metrics   step, values {name: number}
    say       text, optionally level ("warning"), address {name: url}, code_ignored [differences]
    sweep     run (the sweep's id), pipeline, state running | done | failed | interrupted, files, table [rows],
              metrics, params: of a whole sweep
    gate      mode (warn or stop), passed, text; verdict: everything, tests too. One that did not pass is also a finding
    finding   step, name, severity ("error" or "warning"), text; finding: everything, samples too

A field that is missing is not shown; an event or state a listener does not know is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Event = Mapping[str, Any]

_STATES = {
    "pending": "waiting",
    "started": "running",
    "building": "running",
    "resumed": "running",
    "cached": "reused",
    "finished": "done",
    "completed": "done",
    "built": "done",
    "cancelled": "interrupted",
}


def stage_state(event: Event) -> str:
    """State of a stage event under its one name."""
    state = str(event.get("state", ""))
    return _STATES.get(state, state)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and sequences as ``("a.b.0", leaf)``."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield from flatten({str(i): item for i, item in enumerate(value)}, f"{name}.")
        else:
            yield name, value


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers of (nested) metrics by flat name; an estimate ``{value, low, high}`` counts as its value."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            inner = {"": value["value"]} if "value" in value else {f".{k}": v for k, v in value.items()}
            found |= {f"{name}{k}": v for k, v in numbers(inner).items()}
        elif isinstance(value, (bool, int, float)) and math.isfinite(value):
            found[name] = float(value)
    return found
