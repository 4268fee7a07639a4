"""Programs per second of each backend, beside a fresh Python per program, in the same process and in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

from components.environments.sandbox.backends import Backend
from components.environments.sandbox.pool import Sandbox

HERE = [name for name in ("bwrap", "landlock") if Backend(name).missing() is None]
WORKERS, PROGRAMS, ROUNDS = 2, 60, 7
SOURCE = "def f(x):\n    return sorted(x)\n"


def rate(run: Callable[[int], object]) -> float:
    with ThreadPoolExecutor(WORKERS) as threads:
        began = perf_counter()
        list(threads.map(run, range(PROGRAMS)))
        return PROGRAMS / (perf_counter() - began)


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="neither bubblewrap nor Landlock on this machine")
@pytest.mark.parametrize("backend", HERE)
def test_a_confined_program_costs_less_than_a_fresh_unconfined_python(backend: str) -> None:
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", f"{SOURCE}print(f([3, 1, 2]))"]

    def fresh(_: int) -> None:
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"[1, 2, 3]\n"

    with Sandbox(backend=backend, workers=WORKERS) as sandbox:  # type: ignore[arg-type]

        def confined(_: int) -> None:
            assert sandbox.calls(SOURCE, [("f", ([3, 1, 2],), {})]).answers[0].value == [1, 2, 3]

        rate(confined)
        rates = [(rate(confined), rate(fresh)) for _ in range(ROUNDS)]
        began = perf_counter()
        for i in range(PROGRAMS):
            confined(i)
        latency = 1e3 * (perf_counter() - began) / PROGRAMS
    found = {
        "programs_per_s": median(a for a, _ in rates),
        "fresh_per_s": median(b for _, b in rates),
        "ratio": median(a / b for a, b in rates),
        "latency_ms": latency,
    }
    print(f"\n{backend}: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items()))
    if folder := os.environ.get("R1FLOW_BENCH"):
        (Path(folder) / f"sandbox-{backend}.json").write_text(json.dumps({"workers": WORKERS, **found}))
    assert found["ratio"] > 1.0
