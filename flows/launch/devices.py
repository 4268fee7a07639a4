"""How many GPUs this machine has, without the second that importing torch takes."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path


@cache
def cuda_devices() -> int | None:
    """CUDA devices a process started now would see; None where only torch can tell (AMD's stack)."""
    if Path("/dev/kfd").exists():
        return None
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
        # 100: no device. The driver itself heeds CUDA_VISIBLE_DEVICES.
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    except (OSError, AttributeError):
        return None if os.name != "posix" or os.uname().sysname != "Linux" else 0
    return count.value
