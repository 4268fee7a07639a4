"""macOS: the profile that ``sandbox-exec`` would apply, applied by the process to itself (``sandbox_init``).

Written from Apple's profiles and not tried on a Mac: the probe decides there whether it is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_library: Any = None


def prepare() -> None:
    """Load the library while files may still be read. Raises OSError."""
    global _library
    _library = ctypes.CDLL("/usr/lib/system/libsystem_sandbox.dylib")


def profile(readable: Sequence[str]) -> str:
    """Nothing but reading these paths: no writing, network, process, signal to others, or inter-process service."""
    quoted = " ".join('(subpath "' + path.replace("\\", "\\\\").replace('"', '\\"') + '")' for path in readable)
    return "\n".join(
        [
            "(version 1)",
            "(deny default)",
            f'(allow file-read* {quoted} (literal "/dev/urandom") (literal "/dev/null"))',
            "(allow file-read-metadata)",
            '(allow file-write-data (literal "/dev/null"))',
            "(allow sysctl-read)",
            "(allow signal (target self))",
        ]
    )


def apply(text: str) -> None:
    """Confine this process for good. Raises OSError."""
    error = ctypes.c_char_p()
    if _library.sandbox_init(text.encode(), ctypes.c_uint64(0), ctypes.byref(error)):
        raise OSError(f"sandbox_init: {(error.value or b'').decode(errors='replace')}")
