"""Which causes of a failure pass by themselves, so that the same stage may be tried again, and which never do."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path

# A network or a shared disk that was away for a moment, a resource that was busy. Not: a full disk, a missing file.
_PASSING = {
    *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EPIPE),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ENETDOWN, errno.ENETRESET),
    *(errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
}
# Exceptions of HTTP clients, by name: they are not imported for this.
_PASSING_NAMES = {"ConnectTimeout", "ReadTimeout", "ConnectError", "ReadError", "RemoteProtocolError"}
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
# What a program does to itself (an abort, a bad pointer, a limit it ran into) it does again.
_OWN_FAULT = {
    *(signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS, signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGXCPU, signal.SIGXFSZ),
}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_LITTLE_SPACE = 4 << 20  # bytes; a stage that has no more can't even say what happened to it
_NO_MEMORY = "Fix: smaller micro-batches (micro_batch_tokens), a smaller engine.max_batch or fewer processes"


def is_transient(error: BaseException | None) -> bool:
    """Whether an exception, or what it was raised from, is of a kind that passes by itself."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ConnectionError | TimeoutError):
            return True
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in _PASSING_STATUS or type(error).__name__ in _PASSING_NAMES:
            return True
        error = error.__cause__
    return False


def memory_remedy(error: BaseException) -> str:
    """What to do about an exception that says that memory ran out; "" for any other."""
    text = str(error)
    gone = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return _NO_MEMORY if gone or "can't allocate memory" in text or "Cannot allocate memory" in text else ""


def in_words(error: BaseException, where: Path) -> str:
    """An exception in a line, with what to do about memory or space on the disk of ``where`` if that ran out."""
    text = f"{type(error).__name__}: {error}"
    remedy = memory_remedy(error)
    if isinstance(error, OSError) and error.errno in _FULL and " are free" not in text:
        remedy = _no_space(where)
    text = text.rstrip(": ")
    return f"{text.rstrip('.')}. {remedy}" if remedy else text


def short_of_space(where: Path) -> str:
    """That the disk of ``where`` is full, with the remedy; "" if it isn't."""
    return _no_space(where) if shutil.disk_usage(where).free < _LITTLE_SPACE else ""


def _no_space(where: Path) -> str:
    free = shutil.disk_usage(where).free
    return f"The disk is full: {free:,} bytes are free in {where}. Fix: free some, or set artifacts=DIR to another disk"


def oom_kills() -> int | None:
    """How many processes this machine's kernel has killed because memory ran out; None where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def explain_death(
    exitcode: int | None, oom_before: int | None, oom_after: int | None, *, orphaned: bool = False
) -> tuple[str, bool]:
    """(what became of a worker that died without a word, whether that may pass by itself).

    Args:
        exitcode: minus the signal, as `multiprocessing` has it.
        oom_before, oom_after: `oom_kills` before the worker started and after it died.
        orphaned: the process that started the worker, and knows how it ended, has gone as well.
    """
    subject = ""
    if orphaned:
        exitcode, subject = -signal.SIGKILL, "was lost with the fork server, which "
    if exitcode is None or exitcode >= 0:
        return f"exited with code {exitcode} before it was done", False
    number = signal.Signals(-exitcode)
    if number != signal.SIGKILL:
        return f"died of {number.name}", number not in _OWN_FAULT
    if oom_before is None or oom_after is None:
        return f"{subject}was killed (SIGKILL), probably because memory ran out. {_NO_MEMORY}", False
    if oom_after > oom_before:
        return f"{subject}was killed (SIGKILL) because memory ran out. {_NO_MEMORY}", False
    return f"{subject}was killed (SIGKILL) from outside; memory had not run out", True
