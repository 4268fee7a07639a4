"""An exclusive lock between processes that cannot go stale: the kernel frees a flock when its last holder dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from components.artifacts.disk import naming_errors

_UNKNOWN = "another process"
_POLL_S = 0.05
_TELL_AGAIN_S = 60.0  # after which a waiter is told again, then after twice as long each time


def acquire(path: Path, what: str, on_wait: Callable[[str], None] | None = None, *, block: bool = True) -> int | None:
    """Take the lock file at ``path`` and return its descriptor; closing every copy of it releases the lock.

    Args:
        what: what is being locked, for messages.
        on_wait: told whom we wait for (pid, host, since), again whenever the holder changes; how long it has taken so
            far, ever more rarely; and at the end how long it took.
        block: if False and the lock is taken, return None at once.

    The descriptor is closed on exec, so that no unrelated child keeps the lock. A forked child shares it.

    Raises: OSError if the lock file cannot be made or the file system has no locks.
    """
    fd = _open(path)
    try:
        wait = _Wait(path, what, on_wait)
        while not (taken := _try_lock(fd, path)) or not is_at(fd, path):
            if taken:  # a file that was deleted or replaced while we waited, which locks nobody else out
                os.close(fd)
                fd = _open(path)
                continue
            if not block:
                os.close(fd)
                return None
            wait.tell()
            time.sleep(_POLL_S)
        wait.over()
        me = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}).encode()
        with naming_errors("write", path, lambda: len(me)):
            os.ftruncate(fd, 0)
            os.pwrite(fd, me, 0)
        return fd
    except BaseException:
        os.close(fd)
        raise


def acquire_folder(path: Path, what: str, on_wait: Callable[[str], None] | None = None) -> int | None:
    """Lock a folder as well: a lock file can be deleted while it is held, what is being built can't be.

    None where there is no such folder or the file system does not lock folders.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    told = False
    try:
        while is_at(fd, path):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if on_wait is not None and not told:
                    told = True
                    on_wait(f"waiting for another process, which is working on {what} (its lock file was deleted)")
                time.sleep(_POLL_S)
            except OSError:
                break
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def is_at(fd: int, path: Path) -> bool:
    """Whether that path still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _open(path: Path) -> int:
    with naming_errors("lock", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class _Wait:
    """What a waiter is told: whom it waits for, and how long."""

    def __init__(self, path: Path, what: str, on_wait: Callable[[str], None] | None) -> None:
        self.path, self.what, self.on_wait = path, what, on_wait
        self.began, self.tries, self.told, self.again_s = time.monotonic(), 0, "", _TELL_AGAIN_S

    def tell(self) -> None:
        """Call after every try that failed; the first is let pass, for the lock may be free at once."""
        self.tries += 1
        if self.on_wait is None or self.tries < 2:
            return
        waited = time.monotonic() - self.began
        holder = _holder(self.path)
        if holder == _UNKNOWN and self.told:
            return  # a new holder is writing its name just now
        if holder != self.told:
            self.told = holder
            self.on_wait(f"waiting for {holder}, which is working on {self.what}")
        elif waited >= self.again_s:
            self.again_s *= 2
            self.on_wait(f"waiting for {holder}, for {waited:.0f} s so far")

    def over(self) -> None:
        if self.on_wait is not None and self.told:
            self.on_wait(f"waited {time.monotonic() - self.began:.1f} s for {self.told}")


def _try_lock(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            remedy = "Put the artifacts on a local disk (artifacts=PATH)"
            raise OSError(error.errno, f"{path}: this file system has no locks ({error.strerror}). {remedy}") from error
        raise
    return True


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        pid, host, since = int(holder["pid"]), str(holder["host"]), float(holder["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return _UNKNOWN
    ended = host == socket.gethostname() and not _alive(pid)
    started = datetime.fromtimestamp(since).strftime("%Y-%m-%d %H:%M:%S")
    return f"pid {pid} on {host}, since {started}" + (" (it has ended; processes it started have not)" if ended else "")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
