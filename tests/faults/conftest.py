"""The plant that every test here injects faults into, and the count of what was injected."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.plant import Plant

_TALLY: Counter[str] = Counter()


@pytest.fixture(scope="session")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Plant:
    return Plant(tmp_path_factory.mktemp("plant"))


@pytest.fixture(scope="session")
def tally() -> Counter[str]:
    """Kind of fault → how many were injected and recovered from; a fault that was not fails its test."""
    return _TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _TALLY:
        return
    kills = sum(n for kind, n in _TALLY.items() if kind.startswith("kill"))
    errors = sum(n for kind, n in _TALLY.items() if kind.startswith("error"))
    terminalreporter.section("faults injected, each recovered from to identical results")
    for kind, number in sorted(_TALLY.items()):
        terminalreporter.write_line(f"{number:5d}  {kind}")
    failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
    end = f"{failed} tests failed" if failed else "0 lost, 0 half-made artifacts used"
    terminalreporter.write_line(f"{kills} kills, {errors} I/O errors: {end}")
