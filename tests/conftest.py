"""What holds for all tests."""

import os
import shutil
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


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, driven by Playwright; skips where either is missing.

    Playwright's event loop runs in this thread, where no other test could use asyncio: it ends with the module.
    """
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (extra dev)")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    quiet += ["--disable-background-networking", "--disable-component-update"]
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=quiet)
        yield launched
        launched.close()
