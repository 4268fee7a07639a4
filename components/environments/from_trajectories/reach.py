"""What recorded commands reach for beyond their workspace. Nothing is run here.

``/tmp`` is no part of it: a command of the sandbox has one of its own for as long as it runs, and what a later command
looks for there it will not find.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from components.environments.from_trajectories.calls import WORKSPACE
from components.environments.from_trajectories.words import program, redirections, simple_commands

_NETWORK = frozenset(
    "curl wget ssh scp sftp rsync nc ncat netcat telnet ping dig nslookup host ftp apt apt-get yum dnf brew pip pip3 "
    "npm npx yarn cargo docker podman kubectl gh aws gcloud az psql mysql redis-cli mongo snap systemctl service sudo "
    "su".split()
)
_REMOTE = {
    "git": {"clone", "pull", "fetch", "push", "ls-remote", "submodule"},
    "go": {"get", "install"},
    "gem": {"install"},
}
_ON_FILES = frozenset(
    "cat cd chmod chown cp du find head ln ls mkdir mv pushd rm rmdir stat tail tar touch tree".split()
)
_ROOTS = (
    "bin boot data dev etc home lib media mnt opt proc root run sbin srv sys usr var Users private testbed app repo"
).split()
_OUTSIDE = re.compile(rf"(?:~[\w.-]*|/(?:{'|'.join(_ROOTS)}))(?:/[^\s]*)?")
_HARMLESS = re.compile(r"/dev/(?:null|zero|stdin|stdout|stderr|fd/\d+)|/(?:usr/)?bin/(?:env|bash|sh|python3?|perl|awk)")


def reaches_outside(commands: Iterable[str]) -> str | None:
    """What in the commands of one session, in their order, is of the network or outside of the workspace."""
    place: str | None = ""
    for command in commands:
        try:
            parts, targets = simple_commands(command), redirections(command, "<>")
        except ValueError:
            continue
        for words in parts:
            name = program(words)
            if name in _NETWORK or _REMOTE.get(name, set()) & set(words):
                return f"{name} needs the network or another machine's services"
            for word in words[1:] if name not in ("echo", "printf") else []:
                if _is_outside(word, name, place):
                    return f"{word[:60]} lies outside of the workspace"
            if name in ("cd", "pushd", "popd"):
                place = _moved(place, words)
        inner = re.search(r"\$\(\s*(curl|wget)\b", command)
        if inner:
            return f"{inner[1]} needs the network or another machine's services"
        outside = next((word for word in targets if _is_outside(word, "cat", place)), None)
        if outside is not None:
            return f"{outside[:60]} lies outside of the workspace"
    return None


def path_from(place: str, word: str) -> str:
    """A path relative to the workspace, as seen from a place in it; "" is the workspace itself."""
    if word == WORKSPACE or word.startswith(WORKSPACE + "/"):
        word = "/" + word.removeprefix(WORKSPACE).lstrip("/")
        return posixpath.normpath(word).lstrip("/")
    path = posixpath.normpath(posixpath.join(place, word.removeprefix("~/")))
    return "" if path == "." else path


def _is_outside(word: str, name: str, place: str | None) -> bool:
    if _OUTSIDE.fullmatch(word):
        return not _HARMLESS.fullmatch(word)
    if name in _ON_FILES and word in ("/", "/*", "//"):
        return True
    climbs = word.startswith("../") or "/../" in word or (word == ".." and name in _ON_FILES)
    return climbs and place is not None and path_from(place, word).split("/")[0] == ".."


def _moved(place: str | None, words: Sequence[str]) -> str | None:
    """Where a session is afterwards; None if that cannot be told."""
    if place is None or len(words) != 2 or set(words[1]) & set("$`*?-"):
        return "" if len(words) == 1 and words[0] == "cd" else None
    path = path_from(place, words[1])
    return None if path.startswith("/") else path
