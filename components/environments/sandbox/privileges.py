"""What a program's process gives up besides system calls and files: identity, capabilities, resources."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from pathlib import Path

NOBODY = 65534
_READ_ANY = 1 << 2  # CAP_DAC_READ_SEARCH
_NEW_USER = 0x10000000  # CLONE_NEWUSER
_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityWord(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def become_nobody(*, keep_reading: bool = False) -> None:
    """If root: change to uid and gid 65534 without capabilities.

    Args:
        keep_reading: keep CAP_DAC_READ_SEARCH, for a Python that lies where others may not look (``/root``); Landlock
            still decides which files that is.

    Raises:
        OSError: root that may not change its identity.
    """
    if os.geteuid() == 0:
        if keep_reading and _libc.prctl(8, 1, 0, 0, 0):  # PR_SET_KEEPCAPS
            raise OSError(ctypes.get_errno(), "PR_SET_KEEPCAPS was refused")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    drop_capabilities(keep=_READ_ANY if keep_reading else 0)


def drop_capabilities(keep: int = 0) -> None:
    header = _CapabilityHeader(0x20080522, 0)
    words = (_CapabilityWord * 2)(_CapabilityWord(keep, keep, 0), _CapabilityWord(0, 0, 0))
    if _libc.capset(ctypes.byref(header), ctypes.byref(words)):
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def private_thread_count() -> bool:
    """Count this process's threads apart from the user's others, in a user namespace, where that is allowed."""
    if not hasattr(_libc, "unshare") or _libc.unshare(_NEW_USER):
        return False
    drop_capabilities()
    return True


def can_count_alone() -> bool:
    """Whether `private_thread_count` works here; tried in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            become_nobody()
            os._exit(0 if private_thread_count() else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def threads_of_user(uid: int | None = None) -> int:
    """Threads that run as this user now (default: the process's own), 0 if that cannot be known."""
    wanted, count = os.getuid() if uid is None else uid, 0
    for status in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if status.stat().st_uid == wanted:
                count += len(os.listdir(status / "task"))
    return count


def limit_resources(
    *, memory_mib: int, cpu_seconds: int, stack_mib: int = 64, open_files: int = 64, file_mib: int = 0
) -> None:
    """Hard limits. The end of CPU time is SIGXCPU, which says so; who catches it is killed a second later."""
    limits = {
        "RLIMIT_AS": memory_mib << 20,
        "RLIMIT_FSIZE": file_mib << 20,
        "RLIMIT_NOFILE": open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    for name, value in limits.items():
        if hasattr(resource, name):  # macOS has fewer
            _lower(getattr(resource, name), value)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard in (-1, resource.RLIM_INFINITY) or hard > cpu_seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    _lower(resource.RLIMIT_STACK, stack_mib << 20)


def limit_threads(count: int) -> None:
    _lower(resource.RLIMIT_NPROC, count)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard in (-1, resource.RLIM_INFINITY) else min(value, hard)
    resource.setrlimit(kind, (value, value))


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG, where there is such a thing; a change of identity would undo it, so it comes last."""
    if hasattr(_libc, "prctl") and _libc.prctl(1, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG was refused")


def adopt_orphans() -> None:
    """PR_SET_CHILD_SUBREAPER, where there is such a thing: become the parent of descendants whose own has ended."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(36, 1, 0, 0, 0)
