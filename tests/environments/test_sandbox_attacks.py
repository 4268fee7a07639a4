"""Every attack is stopped, under every backend of this machine, as the user of the tests and as an ordinary one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sandbox_attacks

from components.environments.sandbox import attacks, probe
from components.environments.sandbox.backends import Backend
from components.environments.sandbox.outcome import Limits
from components.environments.sandbox.worker import Server

ROOT = Path(__file__).parents[2]
HERE = [name for name in ("bwrap", "landlock") if Backend(name).missing() is None]
needs_a_backend = pytest.mark.skipif(not HERE, reason="neither bubblewrap nor Landlock on this machine")


def python_for_all() -> str | None:
    """A Python that any user may run."""
    for name in (os.path.realpath(sys.executable), shutil.which("python3", path="/usr/bin:/bin")):
        if name and all(parent.stat().st_mode & 0o001 for parent in Path(name).parents):
            version = subprocess.run(
                [name, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True
            )
            if version.stdout.strip() == b"True":
                return name
    return None


@needs_a_backend
@pytest.mark.parametrize("backend", HERE)
def test_no_attack_gets_through(backend: str) -> None:
    report = sandbox_attacks.run(backend)
    assert len(report) == len(sandbox_attacks.ATTACKS) + 1 > 23
    assert {name: loot for name, (_, loot) in report.items() if loot} == {}
    assert report["afterwards"][0] == "alive"


@needs_a_backend
@pytest.mark.skipif(os.geteuid() != 0, reason="the test above ran as an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to become another user")
@pytest.mark.parametrize("backend", HERE)
def test_no_attack_gets_through_when_an_ordinary_user_runs_it(backend: str) -> None:
    python = python_for_all()
    if python is None or not all(parent.stat().st_mode & 0o001 for parent in (ROOT / "x").parents):
        pytest.skip("no Python, or no project, that an ordinary user may read")
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", python]
    done = subprocess.run(
        [*command, "-B", sandbox_attacks.__file__, backend, "quick"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert {name: loot for name, (_, loot) in json.loads(done.stdout).items() if loot} == {}


@pytest.mark.parametrize("backend", HERE)
def test_the_probe_finds_no_way_out(backend: str) -> None:
    assert probe.why_not(Backend(backend), Limits()) is None


@pytest.mark.skipif(sys.platform != "linux", reason="attacks on Linux")
def test_the_probe_sees_every_attack_get_through_where_nothing_confines() -> None:
    server = Server(Backend("unsafe"))
    try:
        through = probe.attack(server, Limits())
    finally:
        server.close()
    by_limits = {"write a file outside", "write to shared memory files", "use more memory than it may"}
    assert set(through) == set(attacks.ATTACKS) - by_limits  # those three are stopped by resource limits alone
