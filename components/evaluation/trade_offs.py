"""What is said of a sweep's trade-offs, in the same words on the console, in tables and on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from components.evaluation.page.notes import LABELS

ON_FRONT = "on the front"
MEANING = (
    "An arm is on the front if no other is at least as good in both and better in one; its odds are how often that "
    "holds when the means are drawn from what the seeds (with one seed: the prompts) say of them: an arm that is on "
    "the front by luck has low odds."
)


def level_with(label: str, values: Mapping[str, Sequence[float]]) -> list[str]:
    """The other arms whose means are the same in both metrics."""
    return [other for other, found in values.items() if other != label and list(found) == list(values[label])]


def is_level(values: Mapping[str, Sequence[float]]) -> bool:
    """Whether the arms leave nothing to trade: the second metric's mean is the same in all of them."""
    return len({found[1] for found in values.values()}) == 1


def no_trade_off(metric: str) -> str:
    """What is said instead of a front whose arms are level."""
    return f"No trade-off with {LABELS.get(metric, metric)}: all arms have the same."


def place(found: Mapping[str, Any], names: Mapping[str, str] | None = None) -> str:
    """Where one arm stands: on the front (level with whom), or below whom.

    Args:
        found: ``on_front``, ``dominated_by`` and ``level_with`` of the arm.
        names: what arms are called here, by label.
    """
    names = names or {}
    if found["on_front"]:
        level = found.get("level_with") or []
        return f"{ON_FRONT}, level with {_some(level, names)}" if level else ON_FRONT
    return f"below {_some(found['dominated_by'], names)}"


def odds(found: Mapping[str, Any]) -> str:
    """How sure that is, in per cent."""
    return f"{100 * found['odds']:.0f} %"


def _some(labels: Sequence[str], names: Mapping[str, str]) -> str:
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return names.get(labels[0], labels[0]) + more
