"""What the drivers of runs and their workers need of other packages, loaded once by the process arms are forked from.

None of it starts a thread of Python's, reads the configuration or opens a store: a fork of it is as good as a new
process. What is missing here is left out; whoever needs it says so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os

import flows.launch.loaded  # noqa: F401
from flows.launch.marks import are_current, loaded_files, marks_of

_SETTINGS = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}  # read when the package is imported
_PACKAGES = (
    *("hydra", "hydra._internal.hydra", "omegaconf", "hydra.core.override_parser.overrides_parser", "pydantic"),
    *("rich.console", "rich.live", "rich.progress", "rich.table", "pyarrow.parquet", "numpy", "psutil"),
    *("torch.distributed", "torch.utils.deterministic", "safetensors.torch"),
)
_TRACKING = (
    *(
        "mlflow.tracking",
        "mlflow.store.tracking.sqlalchemy_store",
        "mlflow.tracing.client",
        "mlflow.tracing.assessment",
    ),
    *("mlflow.entities", "sqlalchemy.dialects.sqlite", "alembic.command"),
)

with contextlib.suppress(OSError):
    os.setpgid(0, 0)  # a signal to the sweep's group is the sweep's business: it tells its arms

for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
for _name in (*_PACKAGES, *_TRACKING):
    with contextlib.suppress(Exception):  # a package that is absent, or broken: whoever needs it will say so
        importlib.import_module(_name)


_loaded = marks_of(loaded_files())
gc.collect()
gc.freeze()


def is_current() -> bool:
    """Whether a new process would load the same."""
    return are_current(_loaded)
