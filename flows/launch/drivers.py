"""What the drivers of runs and their workers need of other packages, loaded once by the process arms are forked from.

None of it starts a thread of Python's, reads the configuration or opens a store: a fork of it is as good as a new
process. What is missing here is left out; whoever needs it says so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import sysconfig
from pathlib import Path

import flows.launch.loaded  # noqa: F401

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

for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
for _name in (*_PACKAGES, *_TRACKING):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)


def _marks() -> dict[str, tuple[int, int]]:
    """Time and size of every file of ours that was loaded, and of the folders that hold installed packages."""
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    standard = Path(sysconfig.get_path("stdlib"))
    ours = {file for file in files if not any(file.is_relative_to(place) for place in (*installed, standard))}
    return {str(path): _mark(str(path)) for path in (*ours, *installed)}


def _mark(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    except OSError:
        return 0, 0


_loaded = _marks()
gc.collect()
gc.freeze()


def is_current() -> bool:
    """Whether a new process would load the same: no file that is in memory was edited, and nothing installed since."""
    return all(_mark(path) == mark for path, mark in _loaded.items())
