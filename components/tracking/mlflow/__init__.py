"""MLflow's view of runs: one experiment a pipeline, a run per sweep, in it one per run, in it one per stage.

The only package that imports mlflow, and that not before something has to be recorded.
"""

from __future__ import annotations

from pathlib import Path

from components.tracking import background
from components.tracking.events import Event
from components.tracking.mlflow.recorder import Recorder as Recorder


class MlflowTracker:
    """Listener that records a run in MLflow, in the background (see `Background`).

    The store is ``MLFLOW_TRACKING_URI`` if that is set, else SQLite in ``directory``.

    Args:
        experiment: name of the experiment; by default ``r1flow-<pipeline>``.
        flush_every_s: longest time metrics wait before they are written.
        patience_s: how long the end of a run waits for the store.
        samples: rollouts and answers of each stage that become traces, to be read in MLflow's pages; 0 for none.
        register_models: whether models become versions in MLflow's registry, with where they came from.
    """

    def __init__(
        self,
        *,
        directory: str = "artifacts/mlflow",
        experiment: str | None = None,
        flush_every_s: float = 10.0,
        patience_s: float = 40.0,
        samples: int = 12,
        register_models: bool = False,
    ) -> None:
        more = {"samples": samples, "register_models": register_models}
        self._background = background.Background(
            "MLflow",
            lambda memo: Recorder(Path(directory).absolute(), experiment, memo, **more),
            Path(directory).absolute() / "pending",
            flush_every_s=flush_every_s,
            patience_s=patience_s,
        )

    def __call__(self, event: Event) -> None:
        self._background(event)

    def close(self) -> None:
        self._background.close()


def record_pending(directory: str | Path, experiment: str | None = None) -> int:
    """Record what earlier runs left in ``directory/pending``; the number of runs recorded.

    Raises: whatever the store raises; what was not recorded stays.
    """
    home = Path(directory).absolute()
    return background.record_pending(lambda memo: Recorder(home, experiment, memo), home / "pending")
