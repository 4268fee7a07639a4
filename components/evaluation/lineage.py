"""Which model a model has to beat."""

from __future__ import annotations

from collections.abc import Collection, Mapping

BUDGET = "budget"  # an input of this name gives a figure (how much compute to spend), nothing that is learned from

Parents = Mapping[str, Mapping[str, str]]


def incumbent(stage: str, parents: Parents, evaluated: Collection[str]) -> str | None:
    """The evaluated stage that this one comes after: of those it was built from, the one furthest down the pipeline.

    R1's second SFT starts from the base and learns from what the first RL round wrote: it has to beat that round, not
    the base. None if nothing that it was built from was evaluated.

    Args:
        parents: stage → input name → stage.
    """
    found = [(depth(name, parents), name) for name in ancestors(stage, parents) if name in evaluated]
    return max(found)[1] if found else None


def ancestors(stage: str, parents: Parents) -> set[str]:
    """All stages that this one was built from, budgets left aside."""
    found: set[str] = set()
    waiting = [stage]
    while waiting:
        for role, parent in parents.get(waiting.pop(), {}).items():
            if role != BUDGET and parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def depth(stage: str, parents: Parents) -> int:
    """Stages on the longest way from the pipeline's start to this one."""
    known: dict[str, int] = {}
    order = [stage, *ancestors(stage, parents)]
    while missing := [name for name in order if name not in known]:
        ready = [n for n in missing if all(p in known for r, p in parents.get(n, {}).items() if r != BUDGET)]
        if not ready:
            raise ValueError(f"stages form a cycle: {', '.join(sorted(missing))}")
        for name in ready:
            above = [known[p] for r, p in parents.get(name, {}).items() if r != BUDGET]
            known[name] = 1 + max(above, default=-1)
    return known[stage]
