"""Landlock: a process gives up the file system, network and signals, except for what it names. By ctypes.

Numbers and structures: Linux ``linux/landlock.h``; the three system calls have the same numbers on all architectures.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # all known, by version
_NETWORK = (1 << 0) | (1 << 1)  # bind and connect TCP, from version 4
_SCOPES = (1 << 0) | (1 << 1)  # abstract UNIX sockets and signals, from version 6

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Version of the kernel's Landlock, 0 if there is none."""
    found = _libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, found)


def ruleset(readable: Sequence[str], listable: Sequence[str], writable: Sequence[str]) -> int:
    """File descriptor of rules that leave only these paths; may be applied by many processes.

    Args:
        readable: files, and directories with all below them.
        listable: directories whose names may be listed, also those of all directories below.
        writable: files that may be written.

    Raises:
        OSError: the kernel has no Landlock, or it is switched off.
    """
    known = version()
    if not known:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock, or it is switched off (boot parameter lsm=)")
    rights = _FILE_RIGHTS[max(v for v in _FILE_RIGHTS if v <= known)]
    attributes = _Ruleset(rights, _NETWORK if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    rules = _checked(_libc.syscall(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0)))
    for paths, allowed in ((readable, _READ_FILE | _READ_DIR), (listable, _READ_DIR), (writable, _WRITE_FILE)):
        for path in paths:
            _allow(rules, path, allowed)
    return rules


def restrict_self(rules: int) -> None:
    """Apply rules to this process for good; needs no_new_privs. Raises OSError."""
    _checked(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)))


def _allow(rules: int, path: str, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= ~_READ_DIR
        beneath = _Beneath(rights, handle)
        _checked(_libc.syscall(_ADD_RULE, ctypes.c_int(rules), 1, ctypes.byref(beneath), ctypes.c_uint32(0)))
    finally:
        os.close(handle)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
