"""The ways to confine the fork server and its programs, and what each needs."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.environments.sandbox import landlock

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
AUTOMATIC = ("bwrap", "landlock", "macos")  # strongest first


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to confine.

    Attributes:
        name: "bwrap", "landlock", "macos" or "unsafe".
        paths: further readable directories, put on the programs' ``sys.path``.
        scratch_mib: size of a private writable ``/tmp``; bwrap only.
    """

    name: str
    paths: tuple[str, ...] = ()
    scratch_mib: int = 0

    def missing(self) -> str | None:
        """What this machine lacks for it, None if nothing that can be seen without trying."""
        if self.name == "unsafe":
            return None
        if self.name == "macos":
            return None if sys.platform == "darwin" else "not macOS"
        if sys.platform != "linux":
            return f"needs Linux, this is {sys.platform}"
        if self.name == "landlock":
            if self.scratch_mib:
                return "has no scratch directory (a quota needs bwrap)"
            return None if landlock.version() else "the kernel has no Landlock, or it is switched off (lsm= at boot)"
        if shutil.which("bwrap") is None:
            return "bwrap is not on the PATH (package bubblewrap)"
        return None

    def command(self, code: str) -> list[str]:
        """Command line of the server, which runs ``code``."""
        # Not -I: it would ignore PYTHONHASHSEED, and the order of sets would differ between servers.
        python = [os.path.realpath(sys.executable), "-S", "-s", "-P", "-B", "-X", "utf8", "-c", code]
        return [*self._namespaces(), *python] if self.name == "bwrap" else python

    def settings(self) -> dict[str, Any]:
        """For `server.serve`."""
        confine = {"bwrap": "namespaces", "landlock": "landlock", "macos": "macos", "unsafe": "nothing"}[self.name]
        readable = [*self._readable(), *_existing(("/dev/zero", "/dev/urandom"))]
        hides = self.name == "landlock" and os.geteuid() == 0 and not all(map(_open_to_all, readable))
        return {
            "confine": confine,
            "readable": [path for entry in readable for path in _without_packages(entry)] + ["/dev/null"],
            "listable": [_standard_library()],
            "writable": ["/dev/null"],
            "search": list(self.paths),
            "scratch_mib": self.scratch_mib,
            "keep_reading": hides,
        }

    def _readable(self) -> list[str]:
        libraries = glob.glob(os.path.join(sys.base_prefix, "lib", "*.so*")) if sys.base_prefix != "/usr" else []
        frameworks = ("/System/Library", "/usr/share") if sys.platform == "darwin" else ()
        return _existing((_standard_library(), *_SYSTEM, *libraries, *frameworks, *self.paths))

    def _namespaces(self) -> list[str]:
        command = [shutil.which("bwrap") or "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
        command += ["--unshare-uts", "--unshare-cgroup-try", "--new-session", "--hostname", "sandbox"]
        if os.geteuid() == 0:
            command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # the server becomes nobody first of all
        else:
            command += ["--unshare-user"]
        shown = (*self._readable(), os.path.realpath(sys.executable))
        for parent in dict.fromkeys(str(parent) for path in shown for parent in reversed(Path(path).parents[:-1])):
            command += ["--perms", "0755", "--dir", parent]  # else only the owner may pass through it
        for path in shown:
            command += ["--ro-bind", os.path.realpath(path), path]
        for path in _package_directories():
            command += ["--tmpfs", path, "--remount-ro", path]
        for device in _existing(_DEVICES):
            command += ["--dev-bind", device, device]
        if self.scratch_mib:
            command += ["--perms", "1777", "--size", str(self.scratch_mib << 20), "--tmpfs", "/tmp"]
        return [*command, "--remount-ro", "/", "--chdir", "/tmp" if self.scratch_mib else "/", "--"]


def environment(home: str = "/") -> dict[str, str]:
    """All that a program finds in its environment."""
    return {"PATH": "/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def _standard_library() -> str:
    return sysconfig.get_path("stdlib")


def _package_directories() -> list[str]:
    """Installed packages inside the standard library's directory: not for programs, the project may be among them."""
    return [str(p) for name in ("site-packages", "dist-packages") if (p := Path(_standard_library(), name)).is_dir()]


def _without_packages(path: str) -> list[str]:
    """The path, or what lies in it except the directories of packages."""
    hidden = _package_directories()
    if path in hidden:
        return []
    if not any(os.path.commonpath([path, inner]) == path for inner in hidden):
        return [path]
    return [kept for name in sorted(os.listdir(path)) for kept in _without_packages(os.path.join(path, name))]


def _existing(paths: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(path for path in paths if os.path.exists(path)))


def _open_to_all(path: str) -> bool:
    """Whether any user may reach a path; says nothing of the files below it."""
    real = Path(os.path.realpath(path))
    return all(parent.stat().st_mode & 0o001 for parent in real.parents)
