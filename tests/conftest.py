"""What holds for all tests."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard():
    """A shell starts background jobs with Ctrl-C ignored, and what they start inherits that; the tests send Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
