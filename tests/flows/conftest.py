import os
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"
ROOT = Path(__file__).parents[2]
sys.path.append(str(FIXTURES))


@pytest.fixture
def conf() -> Path:
    """A user's configuration directory with a toy pipeline: numbers → first → second → report."""
    return FIXTURES / "conf"


@pytest.fixture
def r1flow(tmp_path, conf):
    """Runs the real command in an empty directory; returns the completed process."""

    def call(*arguments: str, environment: dict[str, str] | None = None, **options):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}", **(environment or {})}
        command = [sys.executable, "-m", "flows.cli", *arguments]
        if arguments and arguments[0] in ("run", "plan"):
            command += ["--config-dir", str(conf)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False, **options
        )

    return call
