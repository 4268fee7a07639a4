"""Most of where rewards differ."""

from collections.abc import Mapping, Sequence

from components.curriculum.cells import Cell, Curriculum

_UNKNOWN = 0.25


def learnability(
    *,
    floor: float = 0.01,
    families: Mapping[str, float] | None = None,
    kinds: Mapping[str, float] | None = None,
    accuracy: str = "accuracy",
    decay: float = 0.8,
) -> Curriculum:
    """All levels, weighed by the variance of the total reward inside a group + floor (arXiv:2408.15099).

    Unlike `pass_rate` it follows graded and shaped rewards too, and opens every level at once.

    Args:
        floor: weight of a level whose rewards agree; keeps it observed.
        families, kinds, accuracy, decay: see `Curriculum`.

    Raises:
        ValueError: floor not positive.
    """
    if floor <= 0:
        raise ValueError(f"curriculum learnability: floor must be positive, got {floor}")

    def weigh(cells: Sequence[Cell], step: int) -> list[float]:
        return [floor + (_UNKNOWN if cell.variance is None else cell.variance) for cell in cells]

    return Curriculum(weigh, families=families, kinds=kinds, accuracy=accuracy, decay=decay)
