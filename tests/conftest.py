"""What holds for all tests."""

import os
import signal

import pytest
from hypothesis import settings

# In CI the same examples every time; elsewhere new ones look for what is not known yet.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard():
    """A shell starts background jobs with Ctrl-C ignored, and what they start inherits that; the tests send Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
