"""A shell in a sandbox with a workspace of the episode's own: files and coreutils, no network, nothing else in reach.

Between commands the workspace is a value, a tar archive in memory: a command unpacks it into a file system of its own,
runs, and packs it again. So commands share nothing with each other or with the machine, an episode can be continued
from any point, and what a killed command did to its files is as if it had never been.
"""

from __future__ import annotations

import fcntl
import os
import platform
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.environments.sandbox.shell_filter import shell_filter
from components.environments.tool_loop import ToolError
from components.environments.tools.host import Broken
from components.environments.tools.workspace import HOME, Workspace
from components.types import Task

_NOBODY = 65534
_MAX_COMMAND = 100_000  # bytes; Linux takes 128 KiB in one argument
_LOWEST = 10  # descriptor: the shell moves them to 3, 4, 5 and 6 one after the other, so none may be one of these
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
# $1: the command, $2: where it starts; 3: workspace in, 4: workspace out, 5: where the command ended, 6: its exit code.
_RUN = (
    f'cd {HOME} && tar xf - <&3 && cd "$2" 2>/dev/null; '
    'sh -c \'trap "pwd >&5" EXIT; eval "$1"\' sh "$1" </dev/null 3<&- 4>&- 6>&-; code=$?; '
    f"{{ kill -9 -1; }} 2>/dev/null; cd {HOME}; tar cf - --sort=name --numeric-owner . >&4 && echo $code >&6"
)


class ShellSession:
    """Begins with ``task.meta["files"]``: path in the workspace → text."""

    def __init__(self, task: Task | None, settings: Shell) -> None:
        self._settings = settings
        self.workspace = Workspace.of({} if task is None else task.meta.get("files", {}))
        self.commands: list[str] = []

    def shell(self, command: str) -> str:
        """Run a shell command in the workspace; the working directory is kept between calls.

        Args:
            command: for /bin/sh.
        """
        self.commands.append(command)
        self.workspace, said, code = self._settings.run(self.workspace, command)
        if code is None:
            return f"{said}\nerror: the command was killed or filled its limits; the files are as before it".strip()
        return said + (f"\nexit code {code}" if code else "") or "(no output)"

    def state(self) -> dict[str, Any]:
        return {"files": self.workspace.files(), "commands": list(self.commands)}

    def close(self) -> None:
        pass


class Shell:
    """The toolset: ``shell``; its state is every file's text, and the commands. Needs Linux and ``bwrap``.

    Args:
        seconds: wall time of a command; one that takes longer ends the episode as "timeout", for on a busy machine that
            says nothing of the command.
        cpu_seconds, memory_mib: of each process. processes: beside each other.
        disk_mib: of the workspace and of ``/tmp``, each.
        output_bytes: kept of what a command writes; more is read and dropped.
    """

    name = "shell"
    slow = True
    tools = (ShellSession.shell,)

    def __init__(
        self,
        *,
        seconds: float = 20.0,
        cpu_seconds: int = 5,
        memory_mib: int = 256,
        processes: int = 24,
        disk_mib: int = 16,
        output_bytes: int = 16384,
    ) -> None:
        self.seconds, self.disk_mib, self.output_bytes = seconds, disk_mib, output_bytes
        self._limits = [
            f"--cpu={cpu_seconds}",
            f"--as={memory_mib << 20}",
            f"--nproc={processes}",
            f"--fsize={disk_mib << 20}",
            "--core=0",
            "--nofile=64",
        ]

    def open(self, task: Task | None) -> ShellSession:
        if problem := _missing():
            raise Broken(f"no shell: {problem}")
        return ShellSession(task, self)

    def run(self, workspace: Workspace, command: str) -> tuple[Workspace, str, int | None]:
        """The workspace afterwards, what was written, and the exit code: None and the old workspace if it was killed.

        Raises:
            ToolError: no shell could be given this command.
            TimeoutError: the command did not end in time.
            Broken: the sandbox could not be set up.
        """
        _check_command(command)
        inputs = [_open(workspace.archive), _open(shell_filter(platform.machine()))]
        pipes = {name: _pipe() for name in ("said", "archive", "place", "code")}
        ends = [inputs[0], *(pipes[name][1] for name in ("archive", "place", "code"))]
        try:
            process = subprocess.Popen(
                self._command(command, workspace.place, ends, inputs[1]),
                stdin=subprocess.DEVNULL,
                stdout=pipes["said"][1],
                stderr=subprocess.STDOUT,
                pass_fds=(*ends, inputs[1]),
                start_new_session=True,
                cwd="/",
                **({"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}),
            )
        except OSError as error:
            for mine, _ in pipes.values():
                os.close(mine)
            raise Broken(f"no process for the sandbox: {error}") from None
        finally:
            for handle in inputs:
                os.close(handle)
            for _, theirs in pipes.values():
                os.close(theirs)
        most = {"said": self.output_bytes, "archive": (2 * self.disk_mib + 1) << 20, "place": 4096, "code": 16}
        try:
            heard = _hear({name: mine for name, (mine, _) in pipes.items()}, most, self.seconds)
        finally:
            _end(process)
            for mine, _ in pipes.values():
                os.close(mine)
        said = heard["said"].decode("utf-8", errors="replace").rstrip("\n")
        if not heard["code"].strip().isdigit():
            if said.startswith("bwrap: "):
                raise Broken(f"the sandbox could not be set up: {said[:500]}")
            return workspace, said, None
        place = heard["place"].decode("utf-8", errors="replace").strip().split("\n")[-1] or workspace.place
        return Workspace(heard["archive"], place), said, int(heard["code"])

    def _command(self, command: str, place: str, ends: list[int], filter_handle: int) -> list[str]:
        line = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
        line += ["--hostname", "sandbox", "--ro-bind", "/usr", "/usr"]
        for path in ("/bin", "/lib", "/lib64"):
            if os.path.islink(path):
                line += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                line += ["--ro-bind", path, path]
        for path in ("/usr/local", "/usr/share/doc"):
            if os.path.isdir(path):
                line += ["--tmpfs", path, "--remount-ro", path]
        for device in _DEVICES:
            line += ["--dev-bind", device, device]
        for path in (HOME, "/tmp"):
            line += ["--size", str(self.disk_mib << 20), "--tmpfs", path]
        line += ["--remount-ro", "/", "--chdir", HOME, "--clearenv"]
        for name, value in (("PATH", "/usr/bin:/bin"), ("HOME", HOME), ("LANG", "C.UTF-8"), ("TZ", "UTC")):
            line += ["--setenv", name, value]
        moves = " ".join(
            f"{number}{'<' if i == 0 else '>'}&{end}"
            for i, (number, end) in enumerate(zip((3, 4, 5, 6), ends, strict=True))
        )
        shut = " ".join(f"{end}>&-" for end in ends)
        line += ["--seccomp", str(filter_handle), "--", "/usr/bin/prlimit", *self._limits]
        return [*line, "/bin/bash", "-c", f"exec {moves}; exec {shut}; {_RUN}", "sh", command, place]


def _check_command(command: str) -> None:
    """Raises ToolError."""
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolError("the command has half of a surrogate pair, which is no text") from None
    if "\0" in command:
        raise ToolError("the command has a NUL")
    if size > _MAX_COMMAND:
        raise ToolError(f"the command has {size:,} bytes, more than {_MAX_COMMAND:,}")


def _open(data: bytes) -> int:
    """Descriptor of a file without a name that holds this, to be read from its beginning."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LOWEST)


def _pipe() -> tuple[int, int]:
    """(end to read from, end to write to)."""
    mine, theirs = os.pipe()
    try:
        return mine, fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    finally:
        os.close(theirs)


def _hear(pipes: Mapping[str, int], most: Mapping[str, int], seconds: float) -> dict[str, bytes]:
    """What arrives until every pipe ends; beyond the most it is dropped, for an archive everything. TimeoutError."""
    heard = {name: bytearray() for name in pipes}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for name, handle in pipes.items():
            selector.register(handle, selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(max(left, 0))
            if not ready and left <= 0:
                raise TimeoutError(f"a command did not end within {seconds:g} s")
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                room = most[key.data] - len(heard[key.data])
                heard[key.data] += data[: max(room, 0)]
    return {name: bytes(data) for name, data in heard.items()}


def _end(process: subprocess.Popen[Any]) -> None:
    """With it ends its namespace, and with that whatever it started."""
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _missing() -> str | None:
    for program in ("bwrap", "prlimit", "bash", "tar"):
        if shutil.which(program) is None:
            return f"{program} is not on the PATH. Fix: install bubblewrap, util-linux, bash and tar (Linux only)"
    return None if Path("/usr").is_dir() else "no /usr"


def shell_check(settings: Mapping[str, Any]) -> list[str]:
    """What this machine lacks for a shell."""
    return [f"shell: {problem}"] if (problem := _missing()) else []
