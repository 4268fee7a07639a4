"""Every level of a family alike."""

from collections.abc import Mapping

from components.curriculum.cells import Curriculum


def uniform(
    *,
    families: Mapping[str, float] | None = None,
    kinds: Mapping[str, float] | None = None,
    accuracy: str = "accuracy",
    decay: float = 0.8,
) -> Curriculum:
    """All levels from the start, each with the same weight. Settings: `Curriculum`."""
    return Curriculum(
        lambda cells, step: [1.0] * len(cells), families=families, kinds=kinds, accuracy=accuracy, decay=decay
    )
