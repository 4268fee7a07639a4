"""One run of ``pipeline=smoke`` for the whole folder: a real Prefect server, a real MLflow store, no network."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.tools import Workplace, becomes


@dataclass(frozen=True)
class Smoke:
    """The finished run, and the place it was made in. Tests that change something work on a copy."""

    place: Workplace
    done: subprocess.CompletedProcess[str]
    after: dict[int, str]  # processes a moment after its end, the server's apart


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Smoke]:
    place = Workplace(tmp_path_factory.mktemp("smoke"))
    try:
        done = place.r1flow("run", "pipeline=smoke")
        assert done.returncode == 0, done.stdout + done.stderr
        yield Smoke(place, done, becomes({}, place.leftovers, limit_s=30))
        stopped = place.r1flow("ui", "--stop")
        assert "Prefect  stopped" in stopped.stdout
        assert becomes({}, place.processes, limit_s=30) == {}
    finally:
        place.kill_everything()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    """An empty machine; what a failed test leaves running there is ended."""
    place = Workplace(tmp_path)
    yield place
    place.kill_everything()
