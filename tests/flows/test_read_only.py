"""What only reads works on artifacts that can't be written, and what writes says so in a line."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import place
from flows.errors import BadInput
from flows.run import run
from flows.runs import list_runs
from tests.flows.conftest import FIXTURES, ROOT

_DROP, _DAC_OVERRIDE = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE

Call = Callable[..., subprocess.CompletedProcess[str]]


def heed_permissions() -> None:
    """Even as root: the program that is executed next can't pass over permission bits."""
    ctypes.CDLL(None).prctl(_DROP, _DAC_OVERRIDE)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    art = tmp_path_factory.mktemp("built") / "artifacts"
    assert run([f"artifacts={art}"], FIXTURES / "conf", quiet=True) == 0
    return art


@pytest.fixture
def art(built: Path, tmp_path: Path) -> Iterator[Path]:
    """A run's artifacts, one of them damaged, that this user may not write."""
    art = Path(shutil.copytree(built, tmp_path / "artifacts"))
    [weight] = art.glob("cache/first/*/weight.txt")
    weight.write_text("other")
    for path in art.rglob("*.lock"):
        path.unlink()
    _chmod(art, 0o555, 0o444)
    yield art
    _chmod(art, 0o755, 0o644)


def _chmod(root: Path, folders: int, files: int) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod(folders if path.is_dir() else files)


@pytest.fixture
def r1flow(art: Path, tmp_path: Path) -> Call:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
        where = [f"artifacts={art}", "--config-dir", str(FIXTURES / "conf")]
        where = where if arguments[0] == "plan" else ["--artifacts", str(art)]
        command = [sys.executable, "-m", "flows.cli", *arguments, *where]
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 120}
        return subprocess.run(command, preexec_fn=heed_permissions, check=False, **options)

    return call


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("status", 0, "done"),
        ("report", 0, "Report: "),
        ("plan", 0, "4 stages, "),
        ("cache ls", 0, "4 artifacts"),
        ("cache gc", 0, "nothing to remove"),
        ("cache export second --alone -o second.tar", 0, "1 artifacts in second.tar"),
        ("cache verify", 1, "left where it is"),
        ("cache pin second", 2, "Fix: make it writable"),
        ("cache gc --yes", 2, "Fix: make it writable"),
    ],
)
def test_a_store_that_cannot_be_written(r1flow: Call, art: Path, command: str, code: int, told: str):
    before = sorted(art.rglob("*"))
    done = r1flow(*command.split())
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if code == 2:
        assert len(done.stderr.splitlines()) == 1
    assert sorted(art.rglob("*")) == before


def test_a_full_disk_stops_a_run_only_if_it_has_something_to_build(built: Path, conf: Path, monkeypatch, capsys):
    usage = SimpleNamespace(free=2**20)
    monkeypatch.setattr(place.shutil, "disk_usage", lambda path: usage)
    assert run([f"artifacts={built}"], conf, quiet=True) == 0
    assert {stage["state"] for stage in list_runs(built)[-1]["stages"].values()} == {"reused"}
    with pytest.raises(BadInput, match="has 1 MiB free, too little for a run"):
        run([f"artifacts={built}", "first.steps=11"], conf, quiet=True)
