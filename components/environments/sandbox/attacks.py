"""Programs that try to get out, run inside a sandbox by `probe` before it is trusted; standard library only.

Each function returns True if it got through. An exception means that it was stopped. That each of them does get
through where nothing is confined is a test.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import sys

ATTACKS = {
    "read a file outside": "read",
    "read the project's own files": "read",
    "write a file outside": "write",
    "write to shared memory files": "write_shm",
    "look into /proc": "proc",
    "connect to this machine": "connect",
    "open a socket": "open_socket",
    "start a process": "fork",
    "start a process by the bare system call": "clone",
    "run another program": "execute",
    "make an anonymous file (memfd)": "memfd",
    "make System V shared memory": "shared_segment",
    "make a new namespace": "namespace",
    "trace a process": "trace",
    "send a signal to its parent": "signal_parent",
    "raise its own limits": "raise_limits",
    "use more memory than it may": "memory",
}

CONTROL = "import what was not loaded before"  # must work: shows that the others fail because they are stopped

_libc = ctypes.CDLL(None, use_errno=True)


def read(path: str) -> bool:
    with open(path, "rb") as file:
        return bool(file.read(1))


def write(path: str) -> bool:
    with open(path, "wb") as file:
        return file.write(b"x") == 1


def write_shm() -> bool:
    path = f"/dev/shm/r1flow-probe-{os.getpid()}"
    try:
        return write(path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def proc() -> bool:
    return bool(os.listdir("/proc"))


def connect(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True


def open_socket() -> bool:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).fileno() >= 0


def fork() -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


def clone() -> bool:
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    pid = _libc.syscall(number, 17, 0, 0, 0, 0)  # SIGCHLD alone: a fork
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return pid > 0


def execute() -> bool:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    return os.waitpid(pid, 0)[1] == 0


def memfd() -> bool:
    handle = os.memfd_create("probe")
    os.close(handle)
    return True


def shared_segment() -> bool:
    segment = _libc.shmget(0, 4096, 0o1600)  # IPC_PRIVATE, IPC_CREAT
    if segment >= 0:
        _libc.shmctl(segment, 0, None)  # IPC_RMID
    return segment >= 0


def namespace() -> bool:
    return _libc.unshare(0x10000000) == 0  # CLONE_NEWUSER


def trace() -> bool:
    return _libc.ptrace(0, 0, 0, 0) == 0  # PTRACE_TRACEME


def signal_parent() -> bool:
    os.kill(os.getppid(), 0)
    return os.getppid() > 0


def raise_limits() -> bool:
    import resource  # not on every platform

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    return resource.getrlimit(resource.RLIMIT_NOFILE) != before


def memory(mib: int) -> bool:
    block = mmap.mmap(-1, mib << 20)
    block[-1:] = b"x"
    return sys.getsizeof(block) > 0


def control() -> bool:
    import colorsys
    import sqlite3  # a shared library of the system's

    return colorsys.rgb_to_hsv(0, 0, 1)[2] == 1 and sqlite3.connect(":memory:").execute("select 1").fetchone() == (1,)
