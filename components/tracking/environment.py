"""Where a run takes place: machine and versions, for its record."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("torch", "transformers", "peft", "datasets", "mlflow", "prefect", "hydra-core", "numpy", "pyarrow")


def environment() -> dict[str, Any]:
    """Python, system, processors and the versions of packages that results may depend on; nothing is imported."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "host": platform.node(),
        "processors": os.cpu_count(),
        "packages": versions,
    }
