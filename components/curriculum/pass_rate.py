"""Most of what is passed half of the time."""

from collections.abc import Mapping, Sequence

from components.curriculum.cells import Cell, Curriculum
from components.curriculum.staged import unlocked

_UNKNOWN = 0.25  # p(1 − p) of a level nobody has tried: at its largest, so that it is tried


def pass_rate(
    *,
    open_levels: int = 2,
    unlock_above: float = 0.5,
    floor: float = 0.03,
    lost_below: float = 0.05,
    lost_share: float = 0.5,
    families: Mapping[str, float] | None = None,
    kinds: Mapping[str, float] | None = None,
    accuracy: str = "accuracy",
    decay: float = 0.8,
) -> Curriculum:
    """Open levels weighed by p(1 − p) + floor; a level opens when the one before is mastered.

    A family that fails even its easiest level gets groups with signal only there: it is held to that level.

    Args:
        open_levels: levels open at the start.
        unlock_above: pass rate above which the next level opens.
        floor: weight of a level that is always or never passed.
        lost_below: pass rate of the easiest level under which the family counts as lost.
        lost_share: least share of a lost family's draws that go to its easiest level.
        families, kinds, accuracy, decay: see `Curriculum`.

    Raises:
        ValueError: floor not positive, a share outside [0, 1], or open_levels below 1.
    """
    if floor <= 0 or not 0 <= lost_share <= 1 or open_levels < 1:
        raise ValueError(
            f"curriculum pass_rate: needs floor > 0, 0 <= lost_share <= 1 and open_levels >= 1, got {floor}, "
            f"{lost_share} and {open_levels}"
        )

    def weigh(cells: Sequence[Cell], step: int) -> list[float]:
        count = unlocked(cells, open_levels, unlock_above)
        weights = [floor + signal(cell) if i < count else 0.0 for i, cell in enumerate(cells)]
        easiest = cells[0].pass_rate
        if easiest is not None and easiest < lost_below:
            weights = raise_first(weights, lost_share)
        return weights

    return Curriculum(weigh, families=families, kinds=kinds, accuracy=accuracy, decay=decay)


def signal(cell: Cell) -> float:
    """p(1 − p): variance of a right-or-wrong reward, hence the size of its gradient (arXiv:2408.15099)."""
    return _UNKNOWN if cell.pass_rate is None else cell.pass_rate * (1 - cell.pass_rate)


def raise_first(weights: Sequence[float], share: float) -> list[float]:
    """Weights whose first has at least this share of the sum; the others keep their proportions."""
    rest = sum(weights[1:])
    if rest == 0 or weights[0] >= share * (weights[0] + rest):
        return list(weights)
    return [share, *((1 - share) * weight / rest for weight in weights[1:])]
