"""From easy to hard."""

from collections.abc import Mapping, Sequence
from typing import Literal

from components.curriculum.cells import Cell, Curriculum


def staged(
    *,
    by: Literal["mastery", "steps"] = "mastery",
    open_levels: int = 1,
    unlock_above: float = 0.5,
    steps_per_level: int = 20,
    families: Mapping[str, float] | None = None,
    kinds: Mapping[str, float] | None = None,
    accuracy: str = "accuracy",
    decay: float = 0.8,
) -> Curriculum:
    """Levels open from the easiest on, each family by itself; open levels weigh the same.

    Args:
        by: "mastery" opens a level when the one before is passed more often than unlock_above; "steps" opens one every
            steps_per_level steps.
        open_levels: levels open at the start.
        families, kinds, accuracy, decay: see `Curriculum`.

    Raises:
        ValueError: an unknown ``by``, or a count below 1.
    """
    if by not in ("mastery", "steps"):
        raise ValueError(f"curriculum staged: by must be mastery or steps, got {by!r}")
    if open_levels < 1 or steps_per_level < 1:
        raise ValueError(
            f"curriculum staged: open_levels and steps_per_level must be at least 1, "
            f"got {open_levels} and {steps_per_level}"
        )

    def weigh(cells: Sequence[Cell], step: int) -> list[float]:
        by_steps = open_levels + step // steps_per_level
        count = by_steps if by == "steps" else unlocked(cells, open_levels, unlock_above)
        return [float(i < count) for i in range(len(cells))]

    return Curriculum(weigh, families=families, kinds=kinds, accuracy=accuracy, decay=decay)


def unlocked(cells: Sequence[Cell], open_levels: int, unlock_above: float) -> int:
    """Number of open levels: those open at the start, then one more for each that is passed above the threshold."""
    count = open_levels
    while count < len(cells) and (cells[count - 1].pass_rate or 0.0) > unlock_above:
        count += 1
    return min(count, len(cells))
