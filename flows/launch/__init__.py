"""Launchers run one stage somewhere: in this process, in N processes of this machine, on a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from components.runtime import Inputs

if TYPE_CHECKING:
    from components.artifacts import Claim
    from flows.launch.events import Emit
    from flows.signals import Stop
    from flows.stage import StageSpec


class StageFailed(Exception):
    """A stage did not finish.

    Attributes:
        stage: its name.
        reason: one line: what went wrong and where to look.
        details: traceback or the end of the worker's log.
        transient: the cause may pass by itself, so that trying again makes sense.
    """

    def __init__(self, stage: str, reason: str, details: str = "", *, transient: bool = False) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage, self.reason, self.details, self.transient = stage, reason, details, transient


@dataclass(frozen=True)
class Context:
    """What a launcher needs of the run.

    Attributes:
        emit: takes the events of the stage's main process.
        stop: the run's request to stop; block on its latches.
        allow: packages that components may come from.
    """

    emit: Emit
    stop: Stop
    allow: tuple[str, ...] = ("components",)


class Launcher(Protocol):
    """Runs one stage to its end and returns the metrics of its main process.

    Raises:
        StageFailed: a worker raised, died or could not start.
        Interrupted: the stage was asked to stop and left a checkpoint.
    """

    in_process: bool

    def slots(self, capacity: int) -> int:
        """How many of the machine's ``capacity`` cores the stage occupies."""
        ...

    def __call__(self, spec: StageSpec, parents: Inputs, claim: Claim, context: Context, /) -> dict[str, Any]: ...


def make_launcher(node: Mapping[str, Any], allow: Iterable[str] = ()) -> Launcher:
    """Build the launcher a ``launcher:`` node names (``_target_`` and its settings).

    Raises:
        ValueError: a target outside ``flows.launch`` and the packages the user allowed.
    """
    target = str(node["_target_"])
    if not any(target == root or target.startswith(root + ".") for root in ("flows.launch", *allow)):
        raise ValueError(
            f"launcher._target_={target}: not in flows.launch nor in an allowed package. Fix: allow: [pkg]"
        )
    module, _, name = target.rpartition(".")
    settings = {key: value for key, value in node.items() if not key.startswith("_")}
    return getattr(importlib.import_module(module), name)(**settings)
