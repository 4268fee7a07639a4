"""What holds for all tests."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# In CI the same examples every time; elsewhere new ones look for what is not known yet.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)  # wall time says nothing on a shared machine
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard():
    """A shell starts background jobs with Ctrl-C ignored, and what they start inherits that; the tests send Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def public_data():
    """Path of a file of public data beside the repository (or in ``R1FLOW_SHARED_DATA``); skips where it isn't."""
    directory = Path(os.environ.get("R1FLOW_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))

    def find(name: str) -> Path:
        if not (directory / name).is_file():
            pytest.skip(f"{name} is not in {directory} (set R1FLOW_SHARED_DATA)")
        return directory / name

    return find
