"""Public data sets to measure on; not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with GSM8K and HumanEval: ``R1FLOW_SHARED_DATA``, or ``shared/data`` beside the repository."""
    default = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("R1FLOW_SHARED_DATA", default))
    if not (folder / "gsm8k_test.jsonl").is_file():
        pytest.skip(f"no data sets at {folder}. Fix: set R1FLOW_SHARED_DATA to a folder with gsm8k_*.jsonl")
    return folder
