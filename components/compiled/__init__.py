"""Loops that Numba compiles for this machine's processor: decoding steps on CPU, without a compiler to install.

Compiled once per machine, some seconds, and kept in ``NUMBA_CACHE_DIR`` or the user's cache folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

OFF = "R1FLOW_NO_KERNELS"


@cache
def kernels() -> ModuleType | None:
    """The module `components.compiled.decode`, or None where Numba is not to be had (said once) or not wanted."""
    if os.environ.get(OFF):
        return None
    try:
        from llvmlite.binding import get_host_cpu_features

        options: Any = import_module("numba").config

        if platform.machine().lower() in ("x86_64", "amd64") and not get_host_cpu_features().get("fma"):
            return None  # emulated fused multiply-adds are slower than the operators they would replace
        if not options.CACHE_DIR:
            options.CACHE_DIR = str(cache_folder())
        from components.compiled import decode
    except Exception as error:  # an import that fails in whatever way must not stop a run that can do without it
        said = "decoding without compiled loops, slower: %s: %s"
        logging.getLogger(__name__).warning(said, type(error).__name__, error)
        return None
    return decode


def cache_folder() -> Path:
    """A folder for compiled code that can be written to: the user's cache, else one for temporary files.

    One for each version of the source: Numba itself does not see a change in what a loop is put together from.
    """
    source = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    chosen = cache / "r1flow" / f"kernels-{hashlib.sha256(source).hexdigest()[:12]}"
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=chosen):
            return chosen
    except OSError:
        return Path(tempfile.mkdtemp(prefix="r1flow-kernels-"))
