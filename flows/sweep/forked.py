"""Arms forked from one process that has the packages of all in memory. Each is a process like one that was started.

It has its own process group, output, input (which ends when its sweep is gone), directory, environment and signals, and
a fork server of its own for its stages' workers. An arm whose code was edited since is started anew.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import resource_tracker, util
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from flows.launch.torchrun import METHOD, room_for_sockets
from flows.sweep.requests import requested

if TYPE_CHECKING:
    from flows.compose import Config
    from flows.stage import StageSpec

_PACKAGES = "flows.launch.drivers"
_WORKERS = "flows.launch.torchrun.Torchrun"
_POLL_S = 0.05


class Forks:
    """Whether the arms of a sweep are forked, and the process they are forked from.

    Args:
        possible: arms are processes of this machine that this process starts.
    """

    def __init__(self, *, possible: bool) -> None:
        self._possible = possible and METHOD == "forkserver"
        self._started = False

    def consider(self, specs: Iterable[StageSpec]) -> None:
        """Hear of a run. One whose stages work in the driver itself is started anew: packages read the environment."""
        self._possible &= all(spec.launcher.get("_target_") == _WORKERS for spec in specs)

    def load(self) -> bool:
        """Begin to load the packages, in the background; False if arms are not forked."""
        if self._possible and not self._started:
            self._started = True
            multiprocessing.forkserver.set_forkserver_preload([_PACKAGES])
            with room_for_sockets():
                multiprocessing.forkserver.ensure_running()
        return self._possible

    def end(self) -> None:
        """End the process arms were forked from, at once."""
        server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
        if self._started and (pid := server._forkserver_pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            server._stop()
        self._started = False


def run_forked(
    command: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    log: str | None,
    requests: str,
    config: Config | None = None,
) -> int:
    """`run_arm`, forked.

    Args:
        config: of the run, so that it need not be composed again.
    """
    context = multiprocessing.get_context("forkserver")
    leash, hold = context.Pipe(duplex=False)
    arguments = (list(command), directory, dict(environment), log, leash, config)
    process = context.Process(target=_become_arm, args=arguments, name="arm", daemon=False)
    try:
        process.start()
    except (OSError, EOFError):  # what arms are forked from was killed
        from flows.sweep.launch import run_arm

        hold.close()
        return run_arm(command, directory, environment, log, requests)
    finally:
        leash.close()
    passed_on = 0
    while (code := process.exitcode) is None:
        for signum in requested(requests)[passed_on:]:
            passed_on += 1
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signum)
        multiprocessing.connection.wait([process.sentinel], _POLL_S)
    hold.close()
    process.close()
    return code if code >= 0 else 128 - code


def _become_arm(
    command: list[str],
    directory: str,
    environment: dict[str, str],
    log: str | None,
    leash: Connection,
    config: Config | None,
) -> None:
    """What a new process of this command would find, then the command itself. Ends with its exit code."""
    from flows.launch.drivers import is_current

    os.setpgid(0, 0)  # a Ctrl-C at the terminal reaches it once, through the sweep
    os.dup2(leash.fileno(), 0)
    leash.close()
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    if not is_current():
        os.execve(command[0], command, environment)
    _fork_server()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if config is not None:
        from flows.compose import hand_over

        hand_over(config)
    from flows.cli import main

    sys.argv = [command[0], *command[3:]]
    try:
        sys.exit(main())
    finally:  # as at the end of an interpreter
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _fork_server() -> None:
    """Give this process a fork server of its own that is loaded already: `ensure_running` then finds it at work.

    Here, because only now is there no second thread.
    """
    resource_tracker.ensure_running()
    server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    with room_for_sockets(), socket.socket(socket.AF_UNIX) as listener:
        address = multiprocessing.connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
        listener.bind(address)
        if not util.is_abstract_socket_namespace(address):
            os.chmod(address, 0o600)
        listener.listen()
        alive, own = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(own)
            _serve(listener.detach(), alive)
        os.close(alive)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, own, pid


def _serve(listener: int, alive: int) -> None:
    from flows.launch.loaded import THREAD_ENVIRONMENT

    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.environ.update(THREAD_ENVIRONMENT)
        gc.freeze()
        multiprocessing.forkserver.main(listener, alive, ["flows.launch.warm"])
    except SystemExit:
        code = 0
    finally:
        os._exit(code)
