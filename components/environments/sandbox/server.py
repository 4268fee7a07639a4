"""The fork server: a small warm Python that forks one process per program, in its own process, standard library only.

It talks with its owner over descriptor 0, a UNIX stream socket:

    owner → server   {"limits": …}\\n with five descriptors (stdin, stdout, stderr, job, answers): start a program
    child → owner    P\\n  born (the kernel adds its process id as the owner sees it), R\\n  locked in, E…\\n  failed
    owner → server   K\\n  kill it
    server → owner   X {"status": …, "cpu": …}\\n  it is gone

It never reads what a program is or answers: a child's memory holds nothing of those before it. When the owner goes
away, the socket ends, and the server kills its child and itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import platform
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from components.environments.sandbox import landlock, macos, privileges, runner, seccomp

Settings = dict[str, Any]
_CONTROL = 5  # where a child keeps the socket until it is locked in


def serve(settings: Settings) -> None:
    """Serve until the owner goes away.

    Args:
        settings: ``confine`` ("landlock", "namespaces" – someone else did –, "macos" or "nothing"), ``readable``,
            ``listable``, ``writable``, ``search`` (paths), ``scratch_mib``, ``keep_reading``.
    """
    control = socket.socket(fileno=os.dup(0))
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    confinement = Confinement(settings)
    sys.path[:0] = settings["search"]
    gc.collect()
    gc.freeze()  # a collection in a child must not copy the pages of all that is here
    control.sendall(b"H\n")
    while (request := _receive(control)) is not None:
        limits, handles = request
        confinement.look_around()
        pid = os.fork()
        if pid == 0:
            _child(control, handles, confinement, limits)
        for handle in handles:
            os.close(handle)
        status, cpu = _watch(control, wake_read, pid)
        control.sendall(b"X " + json.dumps({"status": status, "cpu": cpu}).encode() + b"\n")


def _receive(control: socket.socket) -> tuple[Settings, list[int]] | None:
    """The next program to start; a kill that came too late is passed over. None at the end."""
    data, handles = b"", []
    while not data.endswith(b"\n") or data == b"K\n":
        if data == b"K\n":
            data = b""
        part, received, _, _ = socket.recv_fds(control, 65536, 5)
        if not part:
            return None
        data += part
        handles += received
    return json.loads(data.removeprefix(b"K\n"))["limits"], handles


def _watch(control: socket.socket, wake: int, pid: int) -> tuple[int, float]:
    """Wait status and CPU seconds of the child, killed when the owner says so or goes away."""
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage.ru_utime + usage.ru_stime
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        if control in ready:
            gone = not control.recv(2)
            _kill(pid)
            if gone:
                os._exit(0)


def _kill(pid: int) -> None:
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


class Confinement:
    """Made once in the server, applied by every child to itself."""

    def __init__(self, settings: Settings) -> None:
        self.kind = settings["confine"]
        self.scratch_mib = settings["scratch_mib"]
        self.keep_reading = settings["keep_reading"]
        self.is_root = os.geteuid() == 0
        self.alone = not self.keep_reading and privileges.can_count_alone()  # a namespace would end that right to read
        self.looked, self.others = -1.0, 0
        self.rules = -1
        self.filter = b""
        if self.kind in ("landlock", "namespaces"):
            self.filter = seccomp.template(platform.machine(), scratch=self.scratch_mib > 0)
        if self.kind == "landlock":
            self.rules = landlock.ruleset(settings["readable"], settings["listable"], settings["writable"])
        if self.kind == "macos":
            macos.prepare()
            self.profile = macos.profile(settings["readable"])
        if self.kind == "namespaces":
            privileges.become_nobody()
            self.is_root = False

    def look_around(self) -> None:
        """Before a fork: count the threads of the user that programs run as, where all are limited together."""
        now = time.monotonic()
        if self.filter and not self.alone and now - self.looked > 1.0:
            self.looked, self.others = now, privileges.threads_of_user(privileges.NOBODY if self.is_root else None)

    def apply(self, limits: Settings) -> None:
        """Lock this process in. Raises OSError: something is not allowed or not there; nothing weaker is tried."""
        privileges.limit_resources(
            memory_mib=limits["memory_mib"], cpu_seconds=limits["cpu_seconds"], file_mib=self.scratch_mib
        )
        if self.kind == "nothing":
            return
        if self.kind == "macos":
            macos.apply(self.profile)
            return
        if self.is_root:
            privileges.become_nobody(keep_reading=self.keep_reading)
        if self.alone and privileges.private_thread_count():
            privileges.limit_threads(limits["threads"])
        else:  # shared with other programs, which may start some more at the same time
            privileges.limit_threads(self.others + 4 * limits["threads"])
        privileges.die_with_parent()
        seccomp.no_new_privileges()
        if self.rules >= 0:
            landlock.restrict_self(self.rules)
        seccomp.install(self.filter, os.getpid())


def _child(control: socket.socket, handles: list[int], confinement: Confinement, limits: Settings) -> NoReturn:
    """From the fork to the program's end."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        own = os.dup(control.fileno())
        rules = os.dup(confinement.rules) if confinement.rules >= 0 else -1
        # Lift everything above the range it goes to, then put it in its place: no descriptor is overwritten unread.
        lifted = [_above(handle) for handle in (*handles, own)]
        rules = _above(rules) if rules >= 0 else -1
        for place, handle in enumerate(lifted):
            os.dup2(handle, place)
        if rules >= 0:
            confinement.rules = os.dup2(rules, _CONTROL + 1)
        os.closerange(_CONTROL + 1 + (rules >= 0), 4096)
        os.write(_CONTROL, b"P\n")
        try:
            confinement.apply(limits)
        except Exception as error:
            os.write(_CONTROL, f"E{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        if rules >= 0:
            os.close(confinement.rules)
        os.write(_CONTROL, b"R\n")
        os.close(_CONTROL)
        for name in [name for name in sys.modules if name.startswith("components.")]:
            del sys.modules[name]
        runner.main()
    finally:
        os._exit(1)


def _above(handle: int) -> int:
    """A copy of the descriptor under the first free number from 32 on."""
    return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 32)
